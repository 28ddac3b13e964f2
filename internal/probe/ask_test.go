package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// script returns a shell script in the place of nvidia-shimctl.
func script(t *testing.T, text string) func() (string, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), version.Ctl)
	check(t, os.WriteFile(name, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	return func() (string, error) { return name, nil }
}

func TestQuestionsAndAnswers(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", "/of/containerd")
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	check(t, os.WriteFile(socket, nil, 0o600))
	arguments := filepath.Join(t.TempDir(), "arguments")
	program := script(t, `(echo "$*"; cat) > `+arguments+`; printf '{"facts":{"driver":"%s"},"pod_error":"overloaded"}' "$(pwd) ${LD_LIBRARY_PATH-unset}"`)
	a := Ask(program, StartProcess, Questions{Config: "/etc/other.toml", Facts: true, Pod: &Pod{Socket: socket, Namespace: "team", Name: "train"}})
	if a.Facts == nil || a.Facts.Driver != "/ unset" || a.FactsError != "" {
		t.Errorf("facts %+v %q, want the directory / and no environment", a.Facts, a.FactsError)
	}
	if a.Pod != nil || a.PodError != "overloaded" || a.NoKubelet {
		t.Errorf("pod %+v %q", a.Pod, a.PodError)
	}
	want := "probe --questions\n" + `{"config":"/etc/other.toml","facts":true,"pod":{"socket":"` + socket + `","namespace":"team","name":"train"},"timeout":10000000000}` + "\n"
	if got, err := os.ReadFile(arguments); err != nil || string(got) != want {
		t.Errorf("arguments %q %v, want %q", got, err, want)
	}
}

// An argument may have 128 KiB.
func TestManyProcesses(t *testing.T) {
	var q Questions
	for pid := range 20_000 {
		q.Suspend = append(q.Suspend, procfs.ID{PID: 1_000_000 + pid, Start: 1 << 40})
	}
	if a := Ask(script(t, `cat >/dev/null; printf '{"moved":[1]}'`), StartProcess, q); a.MoveError != "" || a.Moved == nil {
		t.Errorf("%+v", a)
	}
}

// The caller does its part between the two halves of the program.
func TestReady(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	program := script(t, `cat >/dev/null; printf '{"ready":true}'; [ "$(head -c 1 <&3 | wc -c)" = 1 ] || exit 3; : >`+ran+`; printf '{"moved":[1]}'`)
	called := false
	q := Questions{Resume: []procfs.ID{{PID: 1}}, Ready: func() error {
		_, err := os.Stat(ran)
		called = errors.Is(err, fs.ErrNotExist)
		return nil
	}}
	if a := Ask(program, StartProcess, q); !called || a.Moved == nil || a.MoveError != "" {
		t.Errorf("called at the right time: %v, %+v", called, a)
	}
	check(t, os.Remove(ran))
	q.Ready = func() error { return errors.New("not thawed") }
	if a := Ask(program, StartProcess, q); a.Moved != nil || a.MoveError != "not thawed" {
		t.Errorf("%+v", a)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the program went on")
	}
	q.Ready = func() error { t.Error("a failure is ready"); return nil }
	if a := Ask(script(t, `printf '{"move_error":"full"}'`), StartProcess, q); a.MoveError != "full" {
		t.Errorf("%+v", a)
	}
}

func TestNothingRunsWithoutAQuestion(t *testing.T) {
	program := func() (string, error) { t.Error("a program is looked up"); return "", os.ErrNotExist }
	if a := Ask(program, StartProcess, Questions{}); a.NoKubelet || a.Facts != nil {
		t.Errorf("%+v", a)
	}
	a := Ask(program, StartProcess, Questions{Pod: &Pod{Socket: filepath.Join(t.TempDir(), "none")}})
	if !a.NoKubelet || a.PodError != "" {
		t.Errorf("without a kubelet: %+v", a)
	}
}

// A kubelet that starts removes its socket before it listens.
func TestASocketThatIsMadeAgain(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	program := script(t, `printf '{"pod":{"found":true}}'`)
	time.AfterFunc(socketWait/20, func() { _ = os.WriteFile(socket, nil, 0o600) })
	if a := Ask(program, StartProcess, Questions{Pod: &Pod{Socket: socket}}); a.NoKubelet || a.Pod == nil || !a.Pod.Found {
		t.Errorf("%+v", a)
	}
}

func TestAProgramThatDoesNotAnswerIsTheErrorOfEveryQuestion(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	check(t, os.WriteFile(socket, nil, 0o600))
	for _, tc := range []struct{ name, script, err string }{
		{"it says why", "echo 'nvidia-shimctl: GPU is lost' >&2; echo more >&2; exit 1", "GPU is lost"},
		{"it complains for 100 MB", "head -c 100000000 /dev/zero | tr '\\0' x >&2; exit 1", strings.Repeat("x", 1024)},
		{"it says nothing", "exit 3", "nvidia-shimctl ended with status 3 and no message"},
		{"it prints no JSON", "echo hello", "nvidia-shimctl did not answer in JSON: invalid character 'h'"},
		{"it prints nothing", "true", "nvidia-shimctl did not answer in JSON: EOF"},
		{"it prints 100 MB", `printf '"'; head -c 100000000 /dev/zero | tr '\0' x`, "nvidia-shimctl answered more than 4194304 bytes"},
		{"it cannot be executed", "", "permission denied"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			program := script(t, tc.script)
			if tc.script == "" {
				name, _ := program()
				check(t, os.Chmod(name, 0o644))
			}
			a := Ask(program, StartProcess, Questions{Facts: true, Live: true, Pod: &Pod{Socket: socket}})
			for _, got := range []string{a.FactsError, a.LiveError, a.PodError} {
				if !strings.Contains(got, tc.err) || len(got) > 1100 || strings.Contains(got, "\n") {
					t.Errorf("error %.300q, want %q", got, tc.err)
				}
			}
		})
	}
}

// A process that ignores every signal that can be ignored ends at the limit, and its answer counts
// if it gave one.
func TestAHungProcessCostsTheTimeLimit(t *testing.T) {
	const hang = "trap '' TERM INT HUP; while :; do sleep 0.05; done"
	q := Questions{Facts: true, Timeout: time.Millisecond}
	goroutines := runtime.NumGoroutine()
	a := Ask(script(t, hang), StartProcess, q)
	if a.FactsError != "nvidia-shimctl did not answer within 2.001s" {
		t.Errorf("error %q", a.FactsError)
	}
	if a = Ask(script(t, `echo '{"facts":{"driver":"580.1.2"}}'; `+hang), StartProcess, q); a.Facts == nil || a.Facts.Driver != "580.1.2" {
		t.Errorf("answers %+v", a)
	}
	for start := time.Now(); runtime.NumGoroutine() > goroutines; time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("%d goroutines are left, were %d", runtime.NumGoroutine(), goroutines)
		}
	}
}

func TestTheFirstOutputIsKept(t *testing.T) {
	f := FirstOutput{Max: maxOutput}
	for range 2 {
		if n, err := f.Write(make([]byte, maxOutput-1)); n != maxOutput-1 || err != nil {
			t.Errorf("wrote %d, %v", n, err)
		}
	}
	if len(f.Text) != maxOutput {
		t.Errorf("%d bytes are kept", len(f.Text))
	}
}

func TestBeside(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("it gives a file to another user: run this test as root")
	}
	self, err := os.Readlink("/proc/self/exe")
	check(t, err)
	name := filepath.Join(filepath.Dir(self), version.Ctl)
	for _, tc := range []struct {
		name   string
		change func() error
		err    string
	}{
		{"root's", func() error { return nil }, ""},
		{"missing", func() error { return os.Remove(name) }, "nvidia-shimctl is not beside the shim: install it at "},
		{"another user's", func() error { return os.Chown(name, 1000, 1000) }, "is owned by uid 1000"},
		{"a group's", func() error { return os.Chmod(name, 0o775) }, "is writable by users other than root"},
		{"a link", func() error {
			if err := os.Remove(name); err != nil {
				return err
			}
			return os.Symlink("/bin/true", name)
		}, "is not a regular file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer os.Remove(name)
			check(t, os.WriteFile(name, nil, 0o755))
			check(t, tc.change())
			got, err := Beside()
			if tc.err == "" && (err != nil || got != name) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("%q, %v, want %q", got, err, tc.err)
			}
		})
	}
}
