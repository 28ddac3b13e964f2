package testtree

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Root is a directory with the file systems of a host that a test lays out by itself.
type Root struct {
	testing.TB
	Dir string
}

// NewRoot makes an empty one.
func NewRoot(t testing.TB) Root {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("files of a driver belong to root and nodes are made: run this test as root")
	}
	return Root{t, t.TempDir()}
}

// Check ends the test if err is not nil.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ProcessorTime is what this process has used until now: unlike the clock's time, it does not grow
// with what else the machine does.
func ProcessorTime(t testing.TB) time.Duration {
	t.Helper()
	var r unix.Rusage
	Check(t, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// Check ends the test if err is not nil.
func (r Root) Check(err error) {
	r.Helper()
	Check(r, err)
}

// Write makes a file of mode 0755 and returns its path.
func (r Root) Write(name, text string) string {
	r.Helper()
	file := filepath.Join(r.Dir, name)
	r.Check(os.MkdirAll(filepath.Dir(file), 0o755))
	r.Check(os.WriteFile(file, []byte(text), 0o755))
	return file
}

// Link makes a symbolic link.
func (r Root) Link(name, target string) {
	r.Helper()
	r.Check(os.MkdirAll(filepath.Dir(filepath.Join(r.Dir, name)), 0o755))
	r.Check(os.Symlink(target, filepath.Join(r.Dir, name)))
}

// Node makes a character device below dev, in place of what is there.
func (r Root) Node(name string, major, minor, mode uint32) {
	r.Helper()
	file := filepath.Join(r.Dir, "dev", name)
	r.Check(os.MkdirAll(filepath.Dir(file), 0o755))
	r.Check(os.RemoveAll(file))
	r.Check(unix.Mknod(file, unix.S_IFCHR|mode, int(unix.Mkdev(major, minor))))
	r.Check(os.Chmod(file, os.FileMode(mode)))
}

// Contents is Tree without the directories.
func Contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := Tree(t, dir)
	maps.DeleteFunc(files, func(_, content string) bool { return strings.HasPrefix(content, "d") })
	return files
}

// Tree is the Content of all files and directories below a directory, by name, with "/" in front.
func Tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		if err == nil {
			files[strings.TrimPrefix(name, dir)], err = Content(name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Content is a file's mode and owner in one line, and then its text or target.
func Content(name string) (string, error) {
	st, err := os.Lstat(name)
	if err != nil {
		return "", err
	}
	owner := st.Sys().(*syscall.Stat_t)
	head := fmt.Sprintf("%s %d:%d\n", st.Mode(), owner.Uid, owner.Gid)
	switch st.Mode().Type() {
	case 0:
		text, err := os.ReadFile(name)
		return head + string(text), err
	case os.ModeSymlink:
		target, err := os.Readlink(name)
		return head + target, err
	}
	return head, nil
}

// Says fails the test unless err has all of the words and one line.
func Says(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q does not say %q in one line", err, w)
		}
	}
}

// LimitDescriptors calls fn while this process can open only spare more files.
func LimitDescriptors(t testing.TB, spare uint64, fn func()) {
	t.Helper()
	next, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0) // the lowest that is free
	Check(t, err)
	unix.Close(next)
	var was unix.Rlimit
	Check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	Check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next) + spare, Max: was.Max}))
	fn()
	Check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
}

// Ldconfig runs this machine's ldconfig and returns what it prints.
func Ldconfig(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command("/sbin/ldconfig", args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v (apt-get install libc-bin)\n%s", cmd, err, out)
	}
	return string(out)
}
