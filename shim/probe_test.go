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
)

// reap does what the shim library does in the shim's process.
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

// putProbe installs a shell script beside the test binary, which is the shim here.
func putProbe(t *testing.T, script string) string {
	t.Helper()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(filepath.Dir(self), probeName)
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(name) })
	return name
}

func setTimeout(t *testing.T, d time.Duration) {
	t.Helper()
	before := nvmlTimeout
	t.Cleanup(func() { nvmlTimeout = before })
	nvmlTimeout = d
}

func TestTheProbesAnswerIsTaken(t *testing.T) {
	reap(t)
	t.Setenv("LD_LIBRARY_PATH", "/of/containerd")
	t.Setenv(config.EnvFile, "/etc/other.toml")
	// What the probe was called with comes back as its answer.
	putProbe(t, `printf '{"driver":"%s","cuda":"%s %s","gpus":[]}' "$*" "$(pwd)" "${LD_LIBRARY_PATH-unset}${NVIDIA_SHIM_CONFIG-unset}"`)
	facts, err := askNVML()
	if err != nil {
		t.Fatal(err)
	}
	if want := "--config=/etc/other.toml probe nvml --timeout=10s"; facts.Driver != want {
		t.Errorf("arguments %q, want %q", facts.Driver, want)
	}
	if facts.CUDA != "/ unsetunset" {
		t.Errorf("directory and environment %q", facts.CUDA)
	}
}

func TestAProbeThatDoesNotAnswerIsAnError(t *testing.T) {
	reap(t)
	for _, tc := range []struct {
		name, script string
		change       func(t *testing.T, name string) error
		err          string
	}{
		{"it says why", "echo 'nvidia-shimctl: GPU is lost' >&2; echo more >&2; exit 1", nil, "GPU is lost"},
		{"it complains for 100 MB", "head -c 100000000 /dev/zero | tr '\\0' x >&2; exit 1", nil, strings.Repeat("x", 1024)},
		{"it says nothing", "exit 3", nil, "nvidia-shimctl ended with status 3 and said nothing"},
		{"it is killed", "kill -9 $$", nil, "nvidia-shimctl ended with status 137 and said nothing"},
		{"it prints no JSON", "echo hello", nil, "nvidia-shimctl answered what is no JSON: invalid character 'h'"},
		{"it prints nothing", "true", nil, "nvidia-shimctl answered what is no JSON: unexpected end"},
		{"it prints 100 MB", "head -c 100000000 /dev/zero", nil, "nvidia-shimctl answered more than 4194304 bytes"},
		{"it prints JSON behind 100 MB", `head -c 100000000 /dev/zero; echo '{"driver":"1"}'`, nil, "more than 4194304 bytes"},
		{"it is missing", "", func(_ *testing.T, n string) error { return os.Remove(n) }, "nvidia-shimctl is not beside the shim: install it at "},
		{"somebody else owns it", "", func(_ *testing.T, n string) error { return os.Chown(n, 1000, 1000) }, "can be changed by others than root"},
		{"a group can write it", "", func(_ *testing.T, n string) error { return os.Chmod(n, 0o775) }, "can be changed by others than root"},
		{"it is a link", "", func(_ *testing.T, n string) error {
			if err := os.Remove(n); err != nil {
				return err
			}
			return os.Symlink("/bin/true", n)
		}, "can be changed by others than root"},
		{"it cannot be executed", "", func(_ *testing.T, n string) error { return os.Chmod(n, 0o644) }, "permission denied"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name := putProbe(t, tc.script)
			if tc.change != nil {
				if os.Geteuid() != 0 {
					t.Skip("needs root: it gives a file to another user")
				}
				if err := tc.change(t, name); err != nil {
					t.Fatal(err)
				}
			}
			_, err := askNVML()
			if err == nil || !strings.Contains(err.Error(), tc.err) || len(err.Error()) > 1100 || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %.300q, want %q", err, tc.err)
			}
		})
	}
}

// A probe that ignores every signal that can be ignored ends with the limit, with its
// children holding its pipes open, and nothing of it stays in the shim.
func TestAProbeThatHangsCostsItsTimeLimit(t *testing.T) {
	reap(t)
	setTimeout(t, -nvmlGrace+300*time.Millisecond)
	pidFile := filepath.Join(t.TempDir(), "pid")
	putProbe(t, "trap '' TERM INT HUP; echo $$ > "+pidFile+"; while :; do sleep 0.05; done")
	goroutines := runtime.NumGoroutine()
	for range 5 {
		start := time.Now()
		_, err := askNVML()
		if err == nil || err.Error() != "nvidia-shimctl did not answer within 300ms" {
			t.Fatalf("error %v", err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("it took %s", took)
		}
	}
	gone := func() bool {
		pid, _ := os.ReadFile(pidFile)
		_, err := os.Stat("/proc/" + strings.TrimSpace(string(pid)))
		return os.IsNotExist(err) && runtime.NumGoroutine() <= goroutines
	}
	for start := time.Now(); !gone(); time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > 5*time.Second {
			t.Fatalf("the probe is still there, or what waited for it: %d goroutines, were %d", runtime.NumGoroutine(), goroutines)
		}
	}
}

// A probe in the kernel ignores SIGKILL as well. What stands for it here is one whose
// exit nobody reaps: to the shim that is the same, no exit ever comes.
func TestAProbeThatCannotBeKilledCostsItsTimeLimit(t *testing.T) {
	setTimeout(t, -nvmlGrace+200*time.Millisecond)
	putProbe(t, "sleep 60")
	before := runtime.NumGoroutine()
	if _, err := askNVML(); err == nil || !strings.Contains(err.Error(), "did not answer within 200ms") {
		t.Fatalf("error %v", err)
	}
	if n := runtime.NumGoroutine() - before; n > 4 {
		t.Errorf("%d goroutines wait for it", n)
	}
	// Not left behind for the tests that reap.
	for {
		if pid, err := syscall.Wait4(-1, nil, 0, nil); err != nil || pid <= 0 {
			break
		}
	}
	_ = reaper.Reap()
}
