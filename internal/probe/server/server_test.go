package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/kubelettest"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// envStay keeps a process that has answered until its standard input ends, as one that hangs in the
// kernel cannot exit.
const envStay = "SERVER_TEST_STAY"

// nvmlProgram is the program that becomeNVMLProgram executes.
const nvmlProgram = "nvidia-shim-nvml"

// TestMain answers like nvidia-shimctl if the arguments are the client's, and like nvidia-shim-nvml if
// it has its name.
func TestMain(m *testing.M) {
	if os.Args[len(os.Args)-1] != "--questions" && os.Args[0] != nvmlProgram {
		os.Exit(m.Run())
	}
	q, err := probe.ReadQuestions(os.Stdin)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(Answer(context.Background(), q))
	}
	if os.Getenv(envStay) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var check = testtree.Check

func ask(q probe.Questions) probe.Answers {
	return probe.Ask(func() (string, error) { return "/proc/self/exe", nil }, probe.StartProcess, q)
}

func TestAHungDriverDoesNotHideTheKubeletsAnswer(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 1})
	pod := probe.Pod{Socket: filepath.Join(t.TempDir(), "kubelet.sock"), Namespace: "team", Name: "train"}
	kubelettest.Serve(t, pod.Socket, kubelettest.Pod("team", "train", "GPU-a"))
	q := probe.Questions{Config: d.ConfigPath, Facts: true, Pod: &pod}
	if a := ask(q); a.Facts == nil || a.Facts.Driver != d.Version || a.Pod == nil || !a.Pod.Found {
		t.Errorf("both answers: %+v", a)
	}
	check(t, d.Hang(true))
	q.Timeout = 300 * time.Millisecond
	a := ask(q)
	if a.Facts != nil || !strings.HasPrefix(a.FactsError, "NVML has not answered within 300ms: nvidia-smi on this host should hang as well") {
		t.Errorf("facts %+v %q", a.Facts, a.FactsError)
	}
	if a.PodError != "" || a.Pod == nil || !a.Pod.Found || strings.Join(a.Pod.Containers["main"], " ") != "GPU-a" {
		t.Errorf("pod %+v %q", a.Pod, a.PodError)
	}
	check(t, d.Hang(false))
	q.Timeout = 0
	if a := ask(q); a.Facts == nil {
		t.Errorf("the driver works again: %q", a.FactsError)
	}
	if a = ask(probe.Questions{Config: "/no/such.toml", Facts: true}); !strings.Contains(a.FactsError, "/no") {
		t.Errorf("without its configuration: %+v", a)
	}
}

func TestAProcessThatHangsKeepsItsLock(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 1})
	check(t, d.Hang(true))
	check(t, os.Mkdir(d.StateDir, 0o700))
	questions, err := json.Marshal(probe.Questions{Config: d.ConfigPath, Facts: true, Timeout: 100 * time.Millisecond})
	check(t, err)
	cmd := exec.Command("/proc/self/exe", "--questions")
	cmd.Env = []string{envStay + "=1"}
	stdin, err := cmd.StdinPipe()
	check(t, err)
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	_, err = stdin.Write(questions)
	check(t, err)
	var a probe.Answers
	check(t, json.NewDecoder(stdout).Decode(&a))
	// The driver stays as it is: a slow process may not even have come to where it hangs.
	want := fmt.Sprintf("process %d asked NVML and should have ended at ", cmd.Process.Pid)
	if b := ask(probe.Questions{Config: d.ConfigPath, Facts: true}); a.FactsError == "" || !strings.HasPrefix(b.FactsError, want) {
		t.Errorf("the first %+v, the next %+v", a, b)
	}
	stdin.Close()
	check(t, cmd.Wait())
}

// A process that hangs in the kernel keeps its lock. The test holds it in its place.
func TestOneProcessAsksNVML(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 1})
	check(t, os.MkdirAll(d.StateDir, 0o700))
	st, err := state.Open(d.StateDir, false)
	check(t, err)
	lock, err := st.Lock(lockName, 0)
	check(t, err)
	defer lock.Close()
	self, err := procfs.Host.ID(os.Getpid())
	check(t, err)
	for _, tc := range []struct {
		name    string
		until   time.Time
		timeout time.Duration
		err     string
	}{
		{"it should have ended long ago", time.Now().Add(-time.Minute), 20 * time.Second, fmt.Sprintf("process %d asked NVML and should have ended at ", self.PID)},
		{"it may still answer", time.Now().Add(time.Hour), 500 * time.Millisecond, fmt.Sprintf("process %d is asking NVML and has not ended within 500ms", self.PID)},
	} {
		note := fmt.Sprintf("%d %d %d\n", self.PID, tc.until.UnixNano(), self.Start)
		check(t, os.WriteFile(filepath.Join(d.StateDir, lockName), []byte(note), 0o600))
		start := time.Now()
		a := ask(probe.Questions{Config: d.ConfigPath, Facts: true, Timeout: tc.timeout})
		if took := time.Since(start); !strings.HasPrefix(a.FactsError, tc.err) || took > 10*time.Second {
			t.Errorf("%s: after %s: %q", tc.name, took, a.FactsError)
		}
	}
	lock.Close()
	answers := make(chan probe.Answers)
	for range 8 {
		go func() { answers <- ask(probe.Questions{Config: d.ConfigPath, Facts: true}) }()
	}
	for range 8 {
		if a := <-answers; a.Facts == nil {
			t.Errorf("one of many: %q", a.FactsError)
		}
	}
}

func TestProgramsAreAskedForTheirVersions(t *testing.T) {
	dir := t.TempDir()
	put := func(name, script string) string {
		file := filepath.Join(dir, name)
		check(t, os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
		return file
	}
	runc, criu := put("runc", `echo "runc version $1 $HOME"; yes | head -c 100000`), put("criu", "echo Version: 4.3.1")
	a := ask(probe.Questions{Programs: []string{runc, criu}})
	if a.VersionsError != "" || len(a.Versions) != 2 || !strings.HasPrefix(a.Versions[0], "runc version --version \ny\n") || len(a.Versions[0]) > maxVersion || a.Versions[1] != "Version: 4.3.1" {
		t.Errorf("%.300q, %s", a.Versions, a.VersionsError)
	}
	a = ask(probe.Questions{Programs: []string{runc, put("broken", "exit 3")}})
	if want := filepath.Join(dir, "broken") + " --version: exit status 3"; a.VersionsError != want || a.Versions != nil {
		t.Errorf("%q, want %q", a.VersionsError, want)
	}
}

// Root in a container that sees the host's /run can hold the lock, but cannot write the file.
func TestALockThatAnotherProgramHoldsStopsNoQuestion(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 1})
	check(t, os.MkdirAll(d.StateDir, 0o700))
	name := filepath.Join(d.StateDir, lockName)
	for _, note := range []string{"", fmt.Sprintf("%d %d 1\n", os.Getpid(), time.Now().Add(-time.Hour).UnixNano()), "none\n"} {
		check(t, os.WriteFile(name, []byte(note), 0o600))
		lock, err := os.Open(name)
		check(t, err)
		check(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
		if a := ask(probe.Questions{Config: d.ConfigPath, Facts: true}); a.Facts == nil {
			t.Errorf("with %q in the file: %s", note, a.FactsError)
		}
		lock.Close()
	}
}
