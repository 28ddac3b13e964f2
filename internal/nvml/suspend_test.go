//go:build cgo

package nvml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// counter compiles a program that counts in GPU memory.
func counter(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "count")
	if out, err := exec.Command("gcc", "-O2", "-o", program, "../../integration/gpu/programs/count.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	return program
}

// countCommand counts in 2 MiB of a simulated GPU.
func countCommand(d *sim.Driver, program, output string) (*exec.Cmd, error) {
	cmd := exec.Command(program, "2")
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Join(d.Root, d.Layout.LibDir()), "NVIDIA_SIM_DEV=" + filepath.Join(d.DevRoot, "dev")}
	out, err := os.Create(output)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.SysProcAttr = out, &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd, cmd.Start()
}

// counts waits until the program that writes this file has counted on.
func counts(output string) error {
	passed := func() int { data, _ := os.ReadFile(output); return bytes.Count(data, []byte("passed")) }
	for from, start := passed(), time.Now(); passed() < from+2; time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			return fmt.Errorf("%s: no progress", output)
		}
	}
	return nil
}

// startCounter starts a program and returns its id and the file that it writes.
func startCounter(t *testing.T, d *sim.Driver) (procfs.ID, string) {
	t.Helper()
	runtime.LockOSThread() // the end of this thread would end the program
	t.Cleanup(runtime.UnlockOSThread)
	output := filepath.Join(t.TempDir(), "output")
	cmd, err := countCommand(d, counter(t), output)
	check(t, err)
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	check(t, counts(output))
	id, err := procfs.Host.ID(cmd.Process.Pid)
	check(t, err)
	return id, output
}

// answer asks the questions in a process that is confined.
func answer(t *testing.T, d *sim.Driver, task string, q probe.Questions) (a probe.Answers) {
	t.Helper()
	stdin, err := probe.QuestionsFile(q)
	check(t, err)
	defer stdin.Close()
	var errs bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stdin, cmd.Stderr = []string{envTask + "=" + task + ":" + d.ConfigPath}, stdin, &errs
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &a)
	}
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, errs.String())
	}
	return a
}

// confineAnd becomes a confined process that does next.
func confineAnd(name, next string) error {
	runtime.LockOSThread()
	cfg, err := config.Load(name)
	if err != nil {
		return err
	}
	q, err := probe.ReadQuestions(os.Stdin)
	if err == nil {
		_, err = os.Stdin.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = Confine(cfg.Host, q, name)
	}
	if err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", []string{"nvml.test"}, []string{envTask + "=" + next + ":" + name})
}

// move answers the questions in the standard input.
func move(name string) error {
	cfg, err := config.Load(name)
	if err != nil {
		return err
	}
	q, err := probe.ReadQuestions(os.Stdin)
	if err != nil {
		return err
	}
	var a probe.Answers
	var moved []int
	if q.Suspend != nil {
		moved, a.Memory, err = Suspend(cfg.Host, q)
	} else {
		moved, err = Resume(cfg.Host, q, func() error { return nil })
	}
	a.Moved = &moved
	if err != nil {
		a.MoveError = err.Error()
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

func TestSuspendAndResume(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 2})
	id, output := startCounter(t, d)
	want := probe.Memory{id.PID: {d.GPUs[0].UUID: 2 << 20}}
	a := answer(t, d, "confine", probe.Questions{Suspend: []procfs.ID{id}, GPUs: []string{d.GPUs[0].BusID}})
	if a.MoveError != "" || !slices.Equal(*a.Moved, []int{id.PID}) || fmt.Sprint(a.Memory) != fmt.Sprint(want) {
		t.Fatalf("%+v, want %v", a, want)
	}
	q := probe.Questions{Resume: []procfs.ID{id}, Needs: want, Wait: true}
	if a = answer(t, d, "confine", q); a.MoveError != "" || !slices.Equal(*a.Moved, []int{id.PID}) {
		t.Fatalf("%+v", a)
	}
	check(t, counts(output))
	if a := answer(t, d, "move", q); a.MoveError != "this program is not confined: only nvidia-shimctl probe may start it" {
		t.Errorf("without Confine: %+v", a)
	}
}

// Otherwise a process could keep a GPU, or need more memory than there is.
func TestT78AnIncompleteAnswerIsRefused(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 3, MIG: []sim.MIGDevice{{GPU: 2, GI: 1}}})
	id, output := startCounter(t, d)
	first, second := d.GPUs[0], d.GPUs[1]
	lost := sim.Fault{Function: "nvmlDeviceGetHandleByIndex_v2", UUID: second.UUID, Code: 15} // NVML_ERROR_GPU_IS_LOST
	for _, test := range []struct {
		name   string
		change func() error
		gpus   []string
		err    string
	}{
		{"no compute processes", func() error { return d.Unsupport("nvmlDeviceGetComputeRunningProcesses") }, []string{first.BusID},
			"NVML does not list the compute processes of GPU 0: this GPU or driver does not support it"},
		{"no graphics processes", func() error { return d.Unsupport("nvmlDeviceGetGraphicsRunningProcesses") }, nil,
			"NVML does not list the graphics processes of GPU 0: this GPU or driver does not support it"},
		{"unknown memory", func() error { return d.Place(sim.Process{UUID: second.UUID, PID: id.PID, Memory: ^uint64(0)}) }, []string{first.BusID},
			fmt.Sprintf("NVML does not report how much memory process %d has on GPU 1", id.PID)},
		{"a lost GPU", func() error { return d.Faults(lost) }, []string{first.BusID, second.BusID},
			fmt.Sprintf("NVML does not list GPU %s: NVML does not report the handle of GPU 1: GPU is lost", second.BusID)},
		{"a lost GPU of a container with all GPUs", func() error { return d.Faults(lost) }, nil, "NVML does not report the handle of GPU 1: GPU is lost"},
		{"a GPU that has gone", func() error { return nil }, []string{"0000:ff:00.0"}, "NVML does not list GPU 0000:ff:00.0: it may be lost, or unbound from the driver"},
		{"no MIG devices", func() error { return d.Unsupport("nvmlDeviceGetMaxMigDeviceCount") }, []string{d.GPUs[2].BusID},
			"GPU 2: NVML does not report the number of MIG devices: this GPU or driver does not support it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			check(t, test.change())
			a := answer(t, d, "confine", probe.Questions{Suspend: []procfs.ID{id}, GPUs: test.gpus})
			if a.MoveError != test.err {
				t.Errorf("%+v, want %q", a, test.err)
			}
			check(t, errors.Join(d.Unsupport(), d.Faults(), d.Place()))
			if a := answer(t, d, "confine", probe.Questions{Resume: []procfs.ID{id}}); a.MoveError != "" {
				t.Errorf("it does not continue: %s", a.MoveError)
			}
			check(t, counts(output))
		})
	}
	check(t, d.Faults(lost))
	if a := answer(t, d, "confine", probe.Questions{Suspend: []procfs.ID{id}, GPUs: []string{first.BusID}}); a.MoveError != "" {
		t.Errorf("another GPU is lost: %s", a.MoveError)
	}
	q := probe.Questions{Resume: []procfs.ID{id}, Needs: probe.Memory{id.PID: {second.UUID: 1}}, GPUs: []string{first.BusID}, Wait: true}
	a := answer(t, d, "confine", q)
	if want := fmt.Sprintf("NVML does not list GPU %s, on which the processes had memory", second.UUID); a.MoveError != want {
		t.Errorf("resumed on a lost GPU: %q", a.MoveError)
	}
}

// Two suspensions at once must not need more than the host has, nor two resumptions more than a
// GPU.
func TestT79WhatOthersMoveIsReserved(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 1})
	id, _ := startCounter(t, d)
	check(t, os.Mkdir(d.StateDir, 0o700))
	self, err := procfs.Host.ID(os.Getpid())
	check(t, err)
	put := func(n int, process procfs.ID, key string) string {
		name := filepath.Join(d.StateDir, reservationName(n))
		data, err := json.Marshal(reserved{process, map[string]uint64{key: 1 << 60}})
		check(t, err)
		check(t, os.WriteFile(name, data, 0o600))
		return name
	}
	lock := func(name string) {
		f, err := os.Open(name)
		check(t, err)
		t.Cleanup(func() { f.Close() })
		check(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	}
	// What a process left that has ended, also if another program has locked it.
	ended := procfs.ID{PID: self.PID, Start: self.Start + 1}
	put(2, ended, "")
	for range 3 {
		lock(put(0, ended, ""))
		lock(put(1, ended, ""))
		if a := answer(t, d, "confine", probe.Questions{Suspend: []procfs.ID{id}}); a.MoveError != "" {
			t.Errorf("a process that has ended counts: %s", a.MoveError)
		}
		if a := answer(t, d, "confine", probe.Questions{Resume: []procfs.ID{id}}); a.MoveError != "" {
			t.Errorf("a process that has ended counts: %s", a.MoveError)
		}
	}
	if a := answer(t, d, "confine", probe.Questions{Suspend: []procfs.ID{id}}); a.MoveError != "" {
		t.Error(a.MoveError)
	}
	resume := probe.Questions{Resume: []procfs.ID{id}, Needs: probe.Memory{id.PID: {d.GPUs[0].UUID: 2 << 20}}}
	lock(put(2, self, d.GPUs[0].UUID))
	const beside = ", beside 1099511627776 MiB that other containers move now"
	if a := answer(t, d, "confine", resume); !strings.HasSuffix(a.MoveError, beside) {
		t.Errorf("memory of the GPU: %+v", a)
	}
	put(2, self, "")
	if a := answer(t, d, "confine", resume); a.MoveError != "" {
		t.Fatalf("memory of the host: %s", a.MoveError)
	}
	if a := answer(t, d, "confine", probe.Questions{Suspend: []procfs.ID{id}}); !strings.HasSuffix(a.MoveError, beside) {
		t.Errorf("memory of the host: %+v", a)
	}
}

// The driver finds a process by its PID, which another one has by then.
func TestT77ACallThatReachesAnotherProcessIsUndone(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 1})
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{envTask + "=reuse:" + d.ConfigPath, "COUNT=" + counter(t), "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// reuse runs in a PID namespace of its own.
func reuse(name string) error {
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, "")); err != nil {
		return err
	}
	d, err := sim.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	if err := os.Setenv("NVIDIA_SIM_DEV", filepath.Join(d.DevRoot, "dev")); err != nil {
		return err
	}
	c, err := openCheckpointer(filepath.Join(d.Root, d.Layout.LibDir(), "libcuda.so.1"))
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	outputs := filepath.Dir(os.Getenv("COUNT"))
	first, err := countCommand(d, os.Getenv("COUNT"), filepath.Join(outputs, "first"))
	if err == nil {
		err = counts(filepath.Join(outputs, "first"))
	}
	if err != nil {
		return err
	}
	pid := first.Process.Pid
	list, err := c.processes([]procfs.ID{{PID: pid}})
	if id, failed := procfs.Host.ID(pid); err == nil {
		list, err = c.processes([]procfs.ID{id})
		err = errors.Join(err, failed)
	}
	if err != nil || len(list) != 1 {
		return fmt.Errorf("%d processes: %w", len(list), err)
	}
	if err := d.Checkpoints(sim.Checkpoint{Function: "Lock", Result: sim.WaitFirst}); err != nil {
		return err
	}
	locking := make(chan error)
	go func() { locking <- c.each(list, running, "Lock") }()
	time.Sleep(200 * time.Millisecond) // it may not have come to the call, and finds no process then
	_, _ = first.Process.Kill(), first.Wait()
	var second *exec.Cmd
	output := filepath.Join(outputs, "second")
	for second == nil || second.Process.Pid != pid {
		if second != nil {
			_, _ = second.Process.Kill(), second.Wait()
		}
		// The next process gets the next number, unless a thread takes it.
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", fmt.Append(nil, pid-1), 0); err != nil {
			return err
		}
		if second, err = countCommand(d, os.Getenv("COUNT"), output); err != nil {
			return err
		}
	}
	if err := errors.Join(counts(output), d.Checkpoints(), <-locking); err != nil {
		return err
	}
	return counts(output)
}
