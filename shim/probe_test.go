package shim

import (
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// reap reaps every child, as the shim library does in the shim's process.
func reap(t *testing.T) {
	t.Helper()
	signals := make(chan os.Signal, 32)
	signal.Notify(signals, unix.SIGCHLD)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range signals {
			_ = reaper.Reap()
		}
	}()
	t.Cleanup(func() {
		signal.Stop(signals)
		close(signals)
		<-done
	})
}

// putProbe installs a shell script beside the test binary, which is the shim here. It has the
// questions in a variable. If the shim thaws a container, it has done so when the script begins.
// Asked for versions, it prints those of programs that may write checkpoints.
func putProbe(t *testing.T, script string) {
	t.Helper()
	putVersions(t, `"runc version 1.5.3","Version: 4.3.1"`, script)
}

// putVersions is putProbe with other versions. PATH then has the programs.
func putVersions(t *testing.T, versions, script string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"runc", "criu"} {
		check(t, os.WriteFile(filepath.Join(dir, name), nil, 0o755))
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	putUnprepared(t, `case "$questions" in
*'"programs"'*) echo '{"versions":[`+versions+`]}'; exit;;
*'"wait":true'*) echo '{"ready":true}'; [ "$(head -c 1 <&3 | wc -c)" = 1 ] || exit 9;;
esac
`+script)
}

// putUnprepared is putProbe, but the script has not had the shim thaw a container.
func putUnprepared(t *testing.T, script string) {
	t.Helper()
	self, err := os.Readlink("/proc/self/exe")
	check(t, err)
	name := filepath.Join(filepath.Dir(self), "nvidia-shimctl")
	check(t, os.WriteFile(name, []byte("#!/bin/sh\nquestions=$(cat)\n"+script+"\n"), 0o755))
	t.Cleanup(func() { os.Remove(name) })
}

func TestTheShimAsksTheProgramBesideIt(t *testing.T) {
	reap(t)
	t.Setenv(config.EnvFile, "/etc/other.toml")
	putProbe(t, `case "$questions" in *'"config":"/etc/other.toml"'*) echo '{"facts":{"driver":"580.1.2"}}';; *) exit 3;; esac`)
	if a := ask(probe.Questions{Facts: true}); a.Facts == nil || a.Facts.Driver != "580.1.2" {
		t.Errorf("answers %+v", a)
	}
	t.Setenv(config.EnvFile, "")
	if a := ask(probe.Questions{Facts: true}); !strings.Contains(a.FactsError, "ended with status 3") {
		t.Errorf("answers %+v", a)
	}
}

// A process that hangs in the kernel ignores SIGKILL. Here its exit is never reaped, which is the
// same to the shim.
func TestAProbeThatCannotBeKilledCostsItsTimeLimit(t *testing.T) {
	putProbe(t, "exec sleep 60")
	before := runtime.NumGoroutine()
	a := ask(probe.Questions{Facts: true, Timeout: time.Millisecond})
	if !strings.Contains(a.FactsError, "did not answer within 2.001s") {
		t.Errorf("error %q", a.FactsError)
	}
	if n := runtime.NumGoroutine() - before; n > 4 {
		t.Errorf("%d goroutines wait for it", n)
	}
	// Not left behind for other tests.
	if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil {
		t.Error(err)
	}
	_ = reaper.Reap()
}
