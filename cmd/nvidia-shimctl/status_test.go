package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term/termtest"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// fixtureProcfs is a procfs of plain files and links, with a containerd's state.
type fixtureProcfs struct {
	procfs
	t     *testing.T
	state string
}

func newFixtureProcfs(t *testing.T) *fixtureProcfs {
	t.Helper()
	f := &fixtureProcfs{procfs: procfs(filepath.Join(t.TempDir(), "proc")), t: t, state: filepath.Join(t.TempDir(), "state")}
	f.process("self", "1", "/usr/bin/nvidia-shimctl", "", "/")
	f.process("5", "1", "/usr/bin/shim", "", "/system.slice/containerd.service")
	return f
}

// process adds one, by PID or "self", in a PID namespace and a cgroup.
func (f *fixtureProcfs) process(pid, namespace, exe, cwd, cgroup string) {
	f.t.Helper()
	dir := f.of(pid, "")
	if err := os.MkdirAll(filepath.Join(dir, "ns"), 0o755); err != nil {
		f.t.Fatal(err)
	}
	for name, target := range map[string]string{"exe": exe, "cwd": cwd, "ns/pid": "pid:[" + namespace + "]", "ns/user": "user:[1]"} {
		if target == "" {
			continue
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			f.t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		// One hierarchy of cgroup v1 has no container in it.
		"cgroup": "2:freezer:/daemons\n1:name=systemd:/\n0::" + cgroup + "\n",
		"status": administrator, "stat": pid + " (a ) name) S 5 1 1", "comm": filepath.Base(exe) + "\n", "environ": "", "cmdline": exe + "\x00",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			f.t.Fatal(err)
		}
	}
}

// bundle writes a container's record below a state directory.
func (f *fixtureProcfs) bundle(state, namespace, id string, init int, plan any) string {
	f.t.Helper()
	dir := filepath.Join(state, tasksName, namespace, id)
	data, err := json.Marshal(plan)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, gpuinject.RecordName), data, 0o600)
	}
	if err == nil && init > 0 {
		err = os.WriteFile(filepath.Join(dir, "init.pid"), []byte(fmt.Sprint(init)), 0o644)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return dir
}

func granted(id, namespace, pod string, gpus ...int) gpuinject.Plan {
	p := gpuinject.Plan{GPU: true, Capabilities: []string{"compute"}, Grant: "because"}
	if id != "" {
		p.Container = &gpuinject.PlanContainer{ID: id, Namespace: namespace}
	}
	if pod != "" {
		p.Container.PodNamespace, p.Container.Pod, p.Container.Name = "team", pod, "main"
	}
	for _, i := range gpus {
		p.GPUs = append(p.GPUs, gpuinject.PlanGPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), PCI: fmt.Sprintf("0000:0%d:00.0", i)})
	}
	return p
}

func ids(list []gpuContainer) (names []string) {
	for _, c := range list {
		names = append(names, c.Namespace+"/"+c.ID)
	}
	return names
}

func TestContainersAreFoundByTheirRecords(t *testing.T) {
	f := newFixtureProcfs(t)
	elsewhere := filepath.Join(t.TempDir(), "odd")
	in := func(state, ns, id string, plan any) string { return f.bundle(state, ns, id, 0, plan) }
	first := in(elsewhere, "k8s.io", "sandbox", map[string]any{"gpu": false})
	in(elsewhere, "k8s.io", "aa", granted("aa", "k8s.io", "train", 0))
	in(elsewhere, "k8s.io", "bb", granted("bb", "k8s.io", "train", 1))
	in(elsewhere, "old", "cc", granted("", "", "", 1))
	in(f.state, "default", "dd", granted("dd", "default", "", 1))
	in(f.state, "default", "plain", map[string]any{"gpu": false})
	in(f.state, "default", "broken", "no plan")
	if err := os.MkdirAll(filepath.Join(f.state, tasksName, "default", "norecord"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A pod's shim works in the bundle of its sandbox; the other has been replaced on
	// disk; the third is a shim of somebody else.
	f.process("100", "1", "/usr/local/bin/"+runtimeclass.ShimName, first, "/")
	f.process("101", "1", "/usr/local/bin/"+runtimeclass.ShimName+" (deleted)", filepath.Join(elsewhere, tasksName, "old", "cc"), "/")
	f.process("102", "1", "/usr/bin/containerd-shim-runc-v2", filepath.Join(t.TempDir(), "x"), "/")
	// A program of a container's or a user's that calls itself our shim says nothing.
	forged := in(filepath.Join(t.TempDir(), "forged"), "default", "ee", granted("ee", "default", "", 0))
	for i, change := range disguises {
		pid := strconv.Itoa(103 + i)
		f.process(pid, "1", "/usr/local/bin/"+runtimeclass.ShimName, forged, "/")
		change(t, f.of(pid, ""))
	}

	if got, want := ids(f.containers([]string{f.state, "/nonexistent"})), []string{"default/dd", "k8s.io/aa", "k8s.io/bb", "old/cc"}; !slices.Equal(got, want) {
		t.Errorf("containers %q, want %q", got, want)
	}
	if got, want := ids(f.containers([]string{elsewhere})), []string{"k8s.io/aa", "k8s.io/bb", "old/cc"}; !slices.Equal(got, want) {
		t.Errorf("found in two ways, containers %q, want %q", got, want)
	}
}

func TestAProcessBelongsToItsContainer(t *testing.T) {
	f := newFixtureProcfs(t)
	const long = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	f.bundle(f.state, "default", "one", 10, granted("one", "default", "", 0))
	f.bundle(f.state, "default", "two", 20, granted("two", "default", "", 0))
	f.bundle(f.state, "default", "nocgroup", 30, granted("nocgroup", "default", "", 0))
	f.bundle(f.state, "default", "ended", 40, granted("ended", "default", "", 0))
	f.bundle(f.state, "k8s.io", long, 0, granted(long, "k8s.io", "train", 0))
	f.bundle(f.state, "default", "hostpid", 50, granted("hostpid", "default", "", 0))
	f.bundle(f.state, "default", "outer", 60, granted("outer", "default", "", 0))
	f.bundle(f.state, "default", "inner", 70, granted("inner", "default", "", 0))
	f.process("10", "10", "/bin/sh", "", "/default/one")
	f.process("20", "20", "/bin/sh", "", "/default/two")
	f.process("30", "30", "/bin/sh", "", "/")
	f.process("50", "1", "/bin/sh", "", "/default/hostpid")
	f.process("60", "60", "/bin/sh", "", "/default/outer")
	f.process("70", "70", "/bin/sh", "", "/default/outer/docker/inner")
	list := f.containers([]string{f.state})
	for _, tc := range []struct {
		name, namespace, cgroup, want string
	}{
		{"the first process", "10", "/default/one", "one"},
		{"one in a cgroup below", "10", "/default/one/worker", "one"},
		{"one of another container", "20", "/default/two", "two"},
		{"one whose cgroup only begins the same", "1", "/default/one-more", ""},
		{"one of a container that shares the host's cgroup", "30", "/", "nocgroup"},
		{"one of the host", "1", "/user.slice", ""},
		{"one of the host at the root", "1", "/", ""},
		{"one of a container that shares the host's PIDs", "1", "/default/hostpid", "hostpid"},
		{"one of a pod by the name of its scope", "77", "/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + long + ".scope", long},
		{"one of a pod by the name of its cgroup", "77", "/kubepods/burstable/pod1/" + long, long},
		{"one of a container in a container", "70", "/default/outer/docker/inner", "inner"},
		{"one of the container around it", "60", "/default/outer/docker", "outer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := os.RemoveAll(f.of("999", "")); err != nil {
				t.Fatal(err)
			}
			f.process("999", tc.namespace, "/bin/train", "", tc.cgroup)
			got := ""
			if c := f.owner(list, 999); c != nil {
				got = c.ID
			}
			if got != tc.want {
				t.Errorf("it is %q's, want %q", got, tc.want)
			}
		})
	}
	if f.owner(list, 998) != nil {
		t.Error("a process that is gone has an owner")
	}
}

func of[T any](v T) *T { return &v }

// statusFixture is a node with two GPUs and three containers, and what NVML says.
func statusFixture(t *testing.T) (*fixtureProcfs, *device.Inventory, *nvml.Snapshot) {
	t.Helper()
	f := newFixtureProcfs(t)
	f.bundle(f.state, "default", "one", 10, granted("one", "default", "", 0, 1))
	f.bundle(f.state, "k8s.io", "two", 20, granted("two", "k8s.io", "train", 0))
	f.bundle(f.state, "default", "idle", 30, granted("idle", "default", "", 1))
	f.process("10", "10", "/bin/one", "", "/default/one")
	f.process("11", "10", "/bin/worker", "", "/default/one/a")
	f.process("20", "20", "/bin/two", "", "/k8s/two")
	f.process("30", "30", "/bin/idle", "", "/default/idle")
	f.process("90", "1", "/usr/bin/Xorg", "", "/")
	inv := &device.Inventory{DriverVersion: "580.1.2", GPUs: []device.GPU{
		{Index: 0, Minor: 1, UUID: "GPU-0", BusID: "0000:00:00.0", Model: "NVIDIA H200"},
		{Index: 1, Minor: 0, UUID: "GPU-1", BusID: "0000:01:00.0", Model: "NVIDIA H200"},
	}}
	live := &nvml.Snapshot{Driver: "580.1.2", CUDA: "13.0", GPUs: []nvml.GPU{
		// NVML's order is not procfs' here.
		{Facts: device.GPUFacts{Index: 0, UUID: "GPU-1", BusID: "0000:01:00.0"}, State: &nvml.State{Processes: []nvml.Process{
			{PID: 10, Type: "C", Memory: of(uint64(1 << 30))}, {PID: 90, Type: "G", Memory: of(uint64(5 << 20))},
		}}},
		{Facts: device.GPUFacts{Index: 1, UUID: "GPU-0", BusID: "0000:00:00.0"}, State: &nvml.State{
			Power: of(75.5), Memory: nvml.MemoryState{Used: of(uint64(3 << 30)), Total: of(uint64(140 << 30))},
			Processes: []nvml.Process{{PID: 10, Type: "C", Memory: of(uint64(1 << 30))}, {PID: 11, Type: "C", Memory: of(uint64(1 << 20))}, {PID: 20, Type: "C+G"}},
		}},
	}}
	return f, inv, live
}

func TestStatusJoinsRecordsAndNVML(t *testing.T) {
	f, inv, live := statusFixture(t)
	s, err := f.status(inv, f.containers([]string{f.state}), live)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.GPUs[0]; got.Power == nil || *got.Power != 75.5 || got.Temperature != nil || !slices.Equal(got.Containers, []string{"one", "two"}) {
		t.Errorf("GPU 0 %+v", got)
	}
	var lines []string
	for _, g := range s.GPUs {
		for _, p := range g.Processes {
			lines = append(lines, fmt.Sprintf("%d %d %s %s %q", g.Index, p.PID, p.Type, p.Name, p.Container))
		}
	}
	if want := []string{`0 10 C one "one"`, `0 11 C worker "one"`, `0 20 C+G two "two"`, `1 10 C one "one"`, `1 90 G Xorg ""`}; !slices.Equal(lines, want) {
		t.Errorf("processes %q\nwant %q", lines, want)
	}
	want := []containerStatus{
		{PlanContainer: gpuinject.PlanContainer{ID: "idle", Namespace: "default"}, PID: 30, GPUs: []string{"GPU-1"}, Memory: of(uint64(0)), Processes: of(0)},
		{PlanContainer: gpuinject.PlanContainer{ID: "one", Namespace: "default"}, PID: 10, GPUs: []string{"GPU-0", "GPU-1"}, Memory: of(uint64(2<<30 + 1<<20)), Processes: of(2)},
		// NVML does not tell how much memory its process has: nor do we.
		{PlanContainer: gpuinject.PlanContainer{ID: "two", Namespace: "k8s.io", PodNamespace: "team", Pod: "train", Name: "main"}, PID: 20, GPUs: []string{"GPU-0"}, Processes: of(1)},
	}
	for i := range want {
		want[i].MIG, want[i].Capabilities, want[i].Grant = []string{}, []string{"compute"}, "because"
	}
	if !reflect.DeepEqual(s.Containers, want) {
		t.Errorf("containers %s\nwant %s", asJSON(t, s.Containers), asJSON(t, want))
	}
}

func TestStatusWithoutNVMLShowsGrants(t *testing.T) {
	f, inv, _ := statusFixture(t)
	s, err := f.status(inv, f.containers([]string{f.state}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Containers) != 3 || s.Containers[1].Memory != nil || s.Containers[1].Processes != nil || !slices.Equal(s.GPUs[0].Containers, []string{"one", "two"}) {
		t.Errorf("%s", asJSON(t, s))
	}
	text := asJSON(t, s)
	for _, field := range []string{"power_watts", "memory_bytes", "utilization", "processes"} {
		if strings.Contains(text, field) {
			t.Errorf("JSON has %q, which nobody knows:\n%s", field, text)
		}
	}
}

func TestAGPUThatNVMLDoesNotListIsShown(t *testing.T) {
	f, inv, live := statusFixture(t)
	live.GPUs, live.Error = live.GPUs[:1], "GPU is lost"
	s, err := f.status(inv, nil, live)
	if err != nil || s.GPUs[0].Error != "GPU is lost" || s.GPUs[0].State != nil || s.GPUs[1].State == nil {
		t.Errorf("%s, %v", asJSON(t, s), err)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Every field of status and info is in docs/shimctl.md: programs rely on them.
func TestEveryFieldIsDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/shimctl.md")
	if err != nil {
		t.Fatal(err)
	}
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(typ.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" && !strings.Contains(string(data), "`"+name+"`") {
				t.Errorf("docs/shimctl.md does not name the field %q of %s", name, typ)
			}
			if f.Type.PkgPath() != "time" {
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[hostStatus]())
	walk(reflect.TypeFor[nvmlInfo]())
}

func TestStatusOfAHungDriverShowsGrants(t *testing.T) {
	defer func(d time.Duration) { nvmlTimeout = d }(nvmlTimeout)
	nvmlTimeout = 300 * time.Millisecond
	d := simulate(t)
	if err := d.Hang(true); err != nil {
		t.Fatal(err)
	}
	f := newFixtureProcfs(t)
	plan := granted("of-a-hung-driver", "default", "")
	plan.GPUs = []gpuinject.PlanGPU{{UUID: d.GPUs[1].UUID, PCI: d.GPUs[1].BusID}}
	f.bundle(f.state, "default", "of-a-hung-driver", 0, plan)
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"status", []string{"status", "--state", f.state}, []string{"NVML: NVML has not answered within 300ms", "of-a-hung-driver", d.GPUs[1].Name}},
		{"status as JSON", []string{"--json", "status", "--state", f.state}, []string{`"nvml_error": "NVML has not answered within 300ms`, `"of-a-hung-driver"`}},
		{"info", []string{"info"}, []string{"NVML: NVML has not answered within 300ms", d.GPUs[1].UUID, "libcuda.so." + d.Version}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, out, errs := ctl(t, append([]string{"--config", d.ConfigPath}, tc.args...)...)
			if status != 0 || errs != "" {
				t.Fatalf("status %d: %s", status, errs)
			}
			for _, w := range tc.want {
				if !strings.Contains(out, w) {
					t.Errorf("no %q in\n%s", w, out)
				}
			}
		})
	}
}

func TestStatusIsWatched(t *testing.T) {
	d := simulate(t)
	watch := func(w io.Writer, args ...string) int {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		args = append([]string{"nvidia-shimctl", "--config", d.ConfigPath}, args...)
		return run(ctx, append(args, "status", "--watch", "--interval=100ms", "--state="+t.TempDir()), w, io.Discard)
	}
	t.Run("as lines of JSON", func(t *testing.T) {
		var out bytes.Buffer
		if status := watch(&out, "--json"); status != 0 {
			t.Fatalf("status %d", status)
		}
		looks := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(looks) < 2 {
			t.Errorf("%d looks:\n%s", len(looks), out.String())
		}
		for _, l := range looks {
			var s hostStatus
			decode(t, l, &s)
			if len(s.GPUs) != 3 || s.Time.IsZero() {
				t.Errorf("look %s", l)
			}
		}
	})
	t.Run("in a pipe one after the other", func(t *testing.T) {
		var out bytes.Buffer
		if status := watch(&out); status != 0 || strings.Count(out.String(), "Driver "+d.Version) < 2 || strings.Contains(out.String(), "\x1b") {
			t.Errorf("status %d:\n%q", status, out.String())
		}
	})
	t.Run("on a terminal in its place", func(t *testing.T) {
		t.Setenv("TERM", "xterm")
		w, read := termtest.Open(t, 120)
		if status := watch(w); status != 0 {
			t.Errorf("status %d", status)
		}
		if screen := read(); strings.Count(screen, "\x1b[H\x1b[2J") < 2 {
			t.Errorf("%q", screen)
		}
	})
	for _, args := range [][]string{{"status", "--interval=1ms"}, {"status", "x"}, {"probe", "nvml", "--what=all"}, {"probe", "--what=facts"}} {
		if status, _, errs := ctl(t, append([]string{"--config", d.ConfigPath}, args...)...); status != 2 {
			t.Errorf("%q: status %d, %s", args, status, errs)
		}
	}
}

func TestInfoHasWhatNVMLKnows(t *testing.T) {
	d := simulate(t)
	status, out, errs := ctl(t, "--config", d.ConfigPath, "--json", "info")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	var info hostInfo
	decode(t, out, &info)
	if info.CUDAVersion != "13.0" || info.NVMLError != "" || info.GPUs[2].NVML == nil || info.GPUs[2].NVML.Brand != "nvidia" || *info.GPUs[2].NVML.Cores != 16896 || len(info.GPUs[2].NVML.Links) != 2 {
		t.Errorf("%s", out)
	}
	_, out, _ = ctl(t, "--config", d.ConfigPath, "info")
	for _, w := range []string{"Driver " + d.Version + ", CUDA 13.0\n", "GPU 1: Hopper, architecture 9.0, brand nvidia, 16896 cores, 143771 MiB with ECC", "links: GPU 0 SYS, GPU 2 SYS"} {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
}
