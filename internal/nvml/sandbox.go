//go:build cgo

package nvml

/*
#include <errno.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

// Calls that the filter refused. The thread that notes them is no Go code: a call of Go's runtime
// may wait for it.
enum { MOST = 16 };
static int refused[MOST];
static atomic_int count;
static int wake[2], listener = -1;

static void *note_refused(void *unused) {
	// The kernel's structures may be longer than those of this header.
	union { struct seccomp_notif it; char room[1024]; } call;
	union { struct seccomp_notif_resp it; char room[1024]; } answer;
	char byte;

	if (read(wake[0], &byte, 1) != 1)
		return NULL;
	for (;;) {
		memset(&call, 0, sizeof call);
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call.it)) {
			if (errno == EINTR || errno == ENOENT)
				continue;
			close(listener); // the calls fail with ENOSYS
			return NULL;
		}
		int i = 0, n = atomic_load(&count);
		while (i < n && refused[i] != call.it.data.nr)
			i++;
		if (i == n && n < MOST) {
			refused[n] = call.it.data.nr;
			atomic_store(&count, n + 1);
		}
		memset(&answer, 0, sizeof answer);
		answer.it.id = call.it.id;
		answer.it.error = -ENOSYS;
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer.it);
	}
}

// prepare_notes starts the thread, before the filter.
static int prepare_notes(void) {
	pthread_t thread;
	return pipe(wake) || pthread_create(&thread, NULL, note_refused, NULL);
}

static void begin_notes(int fd) {
	listener = fd;
	if (write(wake[1], "", 1) != 1)
		close(fd);
}

static int refused_count(void) { return atomic_load(&count); }
static int refused_call(int i) { return refused[i]; }
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// confined runs fn in a process that Confine has confined, with the system calls of allowList
// alone. If fn fails, its error also names the calls that were refused.
func confined(fn func() error) error {
	if !IsConfined() {
		return errors.New("this program is not confined: only nvidia-shimctl probe may start it")
	}
	if err := allowCalls(); err != nil {
		return fmt.Errorf("limit system calls: %w", err)
	}
	err := fn()
	if n := int(C.refused_count()); err != nil && n > 0 {
		var list []string
		for i := range n {
			list = append(list, strconv.Itoa(int(C.refused_call(C.int(i)))))
		}
		err = fmt.Errorf("%w (the probe may not make the driver's system calls %s)", err, strings.Join(list, ", "))
	}
	return err
}

// allowCalls applies allowList to every thread of this process. A call that it does not have fails
// with ENOSYS and is noted. A kernel or a sandbox around this process may not support notes.
func allowCalls() error {
	pid := uint32(os.Getpid())
	if C.prepare_notes() == 0 {
		const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH | unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
		listener, err := setFilter(allowList(pid, unix.SECCOMP_RET_USER_NOTIF), flags)
		if err == nil {
			C.begin_notes(C.int(listener))
			return nil
		}
	}
	stray, err := setFilter(allowList(pid, unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)), unix.SECCOMP_FILTER_FLAG_TSYNC)
	if err == nil && stray != 0 {
		err = fmt.Errorf("thread %d has a filter of its own", stray)
	}
	return err
}
