package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// besideNVML puts this program, as nvidia-shim-nvml, beside itself.
func besideNVML(t *testing.T) {
	t.Helper()
	self, err := os.Readlink("/proc/self/exe")
	check(t, err)
	in, err := os.Open(self)
	check(t, err)
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(filepath.Dir(self), nvmlProgram), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	check(t, err)
	t.Cleanup(func() { os.Remove(out.Name()) })
	_, err = io.Copy(out, in)
	check(t, errors.Join(err, out.Close()))
}

// The whole way: a directory that a caller has open, the program that finds it, the lock, and the
// confined program.
func TestMemoryLimits(t *testing.T) {
	besideNVML(t)
	cgroups := testtree.NewCgroups(t)
	d := sim.New(t, sim.Options{GPUs: 1, Version: sim.NewestVersion})
	check(t, os.Mkdir(d.StateDir, 0o700))
	check(t, d.LimitMemory(sim.MemoryLimits{Backend: "dmem", File: cgroups.File}))
	asking := func(q probe.Questions) probe.Answers {
		q.Config = d.ConfigPath
		return ask(q)
	}
	open := func(name string) *os.File {
		dir, err := os.Open(cgroups.Make(name, true))
		check(t, err)
		t.Cleanup(func() { dir.Close() })
		return dir
	}
	uuid := d.GPUs[0].UUID
	const each = 1 << 30
	var all sync.WaitGroup
	dirs := []*os.File{open("pod/a"), open("pod/b"), open("pod/c"), open("pod/d")}
	change := func(limit probe.MemoryLimit) {
		for _, dir := range dirs {
			all.Go(func() {
				if err := probe.SetMemoryLimits(asking, dir, []probe.MemoryLimit{limit}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	change(probe.MemoryLimit{UUID: uuid, Soft: each, Hard: 2 * each})
	use, err := probe.ReadMemoryLimits(asking, dirs[0], []string{uuid})
	if want := (probe.MemoryUse{MemoryLimit: probe.MemoryLimit{UUID: uuid, Soft: each, Hard: 2 * each}}); err != nil || len(use) != 1 || use[0] != want {
		t.Errorf("%+v, %v", use, err)
	}
	list, err := d.CgroupLimits()
	check(t, err)
	for _, l := range list {
		if l.Cgroup == filepath.Join(cgroups.Top, "pod") && l.Soft != 4*each {
			t.Errorf("four soft limits below it, and it has %d", l.Soft)
		}
	}
	change(probe.MemoryLimit{UUID: uuid, Hard: probe.NoMemoryLimit})
	if list, err := d.CgroupLimits(); err != nil || len(list) > 0 {
		t.Errorf("left behind: %+v, %v", list, err)
	}
	none := []probe.MemoryLimit{{UUID: "GPU-x", Hard: probe.NoMemoryLimit}, {UUID: "GPU-y", Hard: probe.NoMemoryLimit}}
	if err := probe.SetMemoryLimits(asking, dirs[0], none); err == nil || !strings.Contains(err.Error(), "; NVML has no handle of GPU GPU-y") {
		t.Errorf("two GPUs that are not there: %v", err)
	}
	check(t, d.Hang(true))
	q := probe.Questions{Config: d.ConfigPath, Timeout: 300 * time.Millisecond, Cgroup: dirs[0], ReadMemory: []string{uuid}}
	if a := ask(q); a.MemoryUse != nil || len(a.MemoryError) < 40 || a.MemoryError[:40] != "NVML has not answered within 300ms: nvid" {
		t.Errorf("a driver that hangs: %+v", a)
	}
	check(t, d.Hang(false))
	gone := open("pod/gone")
	cgroups.RemoveCgroup(gone.Name())
	if err := probe.SetMemoryLimits(asking, gone, []probe.MemoryLimit{{UUID: uuid, Hard: probe.NoMemoryLimit}}); !errors.Is(err, probe.ErrCgroupGone) {
		t.Errorf("a cgroup that was removed: %v", err)
	}
	st, err := state.Open(d.StateDir, false)
	check(t, err)
	lock, err := st.Lock(lockName, 0)
	check(t, err)
	defer lock.Close()
	self, err := procfs.Host.ID(os.Getpid())
	check(t, err)
	check(t, lock.Truncate(0))
	_, err = fmt.Fprintf(lock, "%d %d %d\n", self.PID, time.Now().Add(-time.Minute).UnixNano(), self.Start)
	check(t, err)
	if _, err := probe.ReadMemoryLimits(asking, dirs[0], []string{uuid}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d asked NVML and should have ended at ", self.PID)) {
		t.Errorf("while another process hangs: %v", err)
	}
	lock.Close()
	if err := probe.SetMemoryLimits(asking, nil, []probe.MemoryLimit{{UUID: uuid}}); err == nil {
		t.Error("no cgroup")
	}
}
