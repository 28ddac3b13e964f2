package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// fixture is a procfs of plain files and links, and the state directory of a containerd.
type fixture struct {
	testtree.Root
	Source
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	root := testtree.NewRoot(t)
	return &fixture{root, Source{Proc: procfs.FS(root.Dir + "/proc"), Root: "/", StateDirs: []string{root.Dir + "/state"}}}
}

// process adds a process of root in a cgroup.
func (f *fixture) process(pid int, exe, cgroup string) {
	f.Helper()
	f.Process("proc", pid, exe, nil)
	// One hierarchy of cgroup v1 has no container in it.
	f.Write(fmt.Sprintf("proc/%d/cgroup", pid), "2:freezer:/daemons\n1:name=systemd:/\n0::"+cgroup+"\n")
}

// bundle writes a container's record below a directory of the fixture, and returns the bundle.
func (f *fixture) bundle(state, namespace, id string, init int, record any) string {
	f.Helper()
	dir := filepath.Join(state, tasksDir, namespace, id)
	if init > 0 {
		f.Write(filepath.Join(dir, "init.pid"), fmt.Sprint(init))
	}
	return filepath.Dir(f.Write(filepath.Join(dir, gpuinject.RecordName), asJSON(f, record)))
}

// granted is the record of a container with GPUs.
func granted(id, namespace, pod string, gpus ...int) gpuinject.Plan {
	p := gpuinject.Plan{
		GPU: true, Capabilities: []string{"compute"}, Grant: "because",
		Container: &gpuinject.PlanContainer{ID: id, Namespace: namespace},
	}
	if pod != "" {
		p.Container.PodNamespace, p.Container.Pod, p.Container.Name = "team", pod, "main"
	}
	for _, i := range gpus {
		p.GPUs = append(p.GPUs, gpuinject.PlanGPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), PCI: fmt.Sprintf("0000:0%d:00.0", i)})
	}
	return p
}

func TestContainersAreFoundByTheirRecords(t *testing.T) {
	f := newFixture(t)
	const elsewhere = "odd"
	sandbox := f.bundle(elsewhere, "k8s.io", "sandbox", 0, map[string]any{"gpu": false})
	f.bundle(elsewhere, "k8s.io", "aa", 0, granted("aa", "k8s.io", "train", 0))
	f.bundle(elsewhere, "k8s.io", "bb", 0, granted("bb", "k8s.io", "train", 1))
	old := f.bundle(elsewhere, "old", "cc", 0, granted("cc", "old", "", 1))
	f.bundle("state", "default", "dd", 0, granted("dd", "default", "", 1))
	f.bundle("state", "default", "plain", 0, map[string]any{"gpu": false})
	f.bundle("state", "default", "broken", 0, "no plan")
	f.Write(filepath.Join("state", tasksDir, "default/norecord/x"), "")
	// Others could have written this record.
	open := f.bundle("state", "default", "open", 0, granted("open", "default", "", 0))
	f.Check(os.Chmod(filepath.Join(open, gpuinject.RecordName), 0o622))
	// A pod's shim works in the bundle of its sandbox; the second one is another shim; the others are
	// another user's and a container's.
	for pid, dir := range map[int]string{
		100: sandbox, 101: old, 102: f.bundle("runc", "default", "ee", 0, granted("ee", "default", "", 0)),
		103: f.bundle("user", "default", "ff", 0, granted("ff", "default", "", 0)), 104: f.bundle("forged", "default", "gg", 0, granted("gg", "default", "", 0)),
	} {
		name := version.Shim
		if pid == 102 {
			name = "containerd-shim-runc-v2"
		}
		f.process(pid, "/usr/local/bin/"+name, "/")
		f.Link(fmt.Sprintf("proc/%d/cwd", pid), dir)
	}
	f.Write("proc/103/status", "Uid:\t1000\t0\t0\t0\nCapEff:\t000001ffffffffff\n")
	f.ReplaceLink("proc/104/ns/mnt", "mnt:[2]")

	ids := func(dirs ...string) (names []string) {
		f.StateDirs = dirs
		for _, c := range f.Read() {
			names = append(names, c.Namespace+"/"+c.ID)
		}
		return names
	}
	if got, want := ids(f.Dir+"/state", "/nonexistent"), []string{"default/dd", "k8s.io/aa", "k8s.io/bb", "old/cc"}; !slices.Equal(got, want) {
		t.Errorf("containers %q, want %q", got, want)
	}
	if got, want := ids(filepath.Join(f.Dir, elsewhere)), []string{"k8s.io/aa", "k8s.io/bb", "old/cc"}; !slices.Equal(got, want) {
		t.Errorf("found in two ways, containers %q, want %q", got, want)
	}
	f.Source.Root = f.Dir
	if got, want := ids("/state"), []string{"default/dd"}; !slices.Equal(got, want) {
		t.Errorf("below a root, containers %q, want %q", got, want)
	}
}

// A node of kind is a container: its root can put anything where containerd keeps its state.
func TestT75FilesOfAnotherRoot(t *testing.T) {
	f := newFixture(t)
	f.Source.Root, f.StateDirs = filepath.Join(f.Dir, "node"), []string{"/run/containerd"}
	const tasks = "node/run/containerd/" + tasksDir
	record := func(at, id string) string {
		return f.Write(filepath.Join(at, id, gpuinject.RecordName), asJSON(f, granted(id, "default", "", 0)))
	}
	record(tasks+"/default", "aa")
	f.Write(tasks+"/default/aa/init.pid", fmt.Sprint(os.Getpid()))
	record("host/"+tasksDir+"/default", "bb")
	f.Link("node/up", "../host") // out of the root, if the kernel followed it
	f.Link("node/absolute", f.Dir+"/host")
	f.StateDirs = append(f.StateDirs, "/up", "/absolute", "/../host")
	f.Link(tasks+"/namespace", f.Dir+"/host/"+tasksDir+"/default")
	f.Link(tasks+"/default/linked", f.Dir+"/host/"+tasksDir+"/default/bb")
	f.Link(tasks+"/default/cc/"+gpuinject.RecordName, f.Dir+"/host/"+tasksDir+"/default/bb/"+gpuinject.RecordName)
	f.Check(errors.Join(os.Mkdir(filepath.Join(f.Dir, tasks, "default/dd"), 0o755), unix.Mkfifo(filepath.Join(f.Dir, tasks, "default/dd", gpuinject.RecordName), 0o644)))
	record(tasks+"/default", "ee")
	f.Check(unix.Mkfifo(filepath.Join(f.Dir, tasks, "default/ee/init.pid"), 0o644))
	f.Check(unix.Mkfifo(filepath.Join(f.Dir, tasks, "default/ee", gpuinject.SuspendedName), 0o644))
	f.Check(unix.Mkfifo(filepath.Join(f.Dir, tasks, "default/ee/config.json"), 0o644))
	long := record(tasks+"/default", "ff")
	f.Write(strings.TrimPrefix(long, f.Dir), asJSON(f, granted("ff", "default", "", 0))+strings.Repeat(" ", maxRecord))
	f.Link(tasks+"/default/gg/"+gpuinject.RecordName, "../aa/"+gpuinject.RecordName)
	var got []string
	for _, r := range f.Read() {
		if got = append(got, r.ID); r.PID != 0 || r.Suspended != nil {
			t.Errorf("%+v", r)
		}
		if _, err := r.Bundle.Container(); err == nil {
			t.Errorf("%s has a configuration", r.ID)
		}
	}
	if want := []string{"aa", "ee"}; !slices.Equal(got, want) {
		t.Errorf("containers %q, want %q", got, want)
	}
	for i := range maxBundles {
		f.Check(os.MkdirAll(filepath.Join(f.Dir, tasks, "many", fmt.Sprint(i)), 0o755))
	}
	f.Check(os.Mkdir(filepath.Join(f.Dir, tasks, "many/x"), 0o755))
	f.Check(os.RemoveAll(filepath.Join(f.Dir, tasks, "default")))
	if n := len(f.Bundles()); n != maxBundles {
		t.Errorf("%d bundles", n)
	}
	// A link of procfs leads out of any root.
	f.Source.Root, f.StateDirs = "/", []string{"/proc/self/root" + f.Dir + "/host"}
	if list := f.Read(); len(list) > 0 {
		t.Errorf("by way of procfs: %+v", list)
	}
}

func TestAProcessBelongsToItsContainer(t *testing.T) {
	f := newFixture(t)
	const long = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	f.bundle("state", "k8s.io", long, 0, granted(long, "k8s.io", "train", 0))
	for _, id := range []string{"one", "outer", "inner"} {
		f.bundle("state", "default", id, 0, granted(id, "default", "", 0))
	}
	list := f.Read()
	for cgroup, want := range map[string]string{
		"/default/one": "one", "/default/one/worker": "one", "/default/one-more": "", "/user.slice": "", "/": "",
		"/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + long + ".scope": long,
		"/kubepods/burstable/pod1/" + long:                                      long,
		"/default/outer/docker/inner":                                           "inner", "/default/outer/docker": "outer",
	} {
		f.process(999, "/bin/train", cgroup)
		if got := Owner(f.Proc, list, 999); got != want {
			t.Errorf("a process in %s is %q's, want %q", cgroup, got, want)
		}
	}
	if Owner(f.Proc, list, 998) != "" {
		t.Error("a process that has ended has an owner")
	}
}

func of[T any](v T) *T { return &v }

// statusFixture is a node with two GPUs, one MIG device and four containers, and what NVML says.
func statusFixture(t *testing.T) (*fixture, device.Inventory, nvml.Snapshot) {
	t.Helper()
	f := newFixture(t)
	mig := granted("mig", "default", "")
	mig.MIG = []gpuinject.PlanMIG{{GPU: 1, GI: 3, CI: 0, UUID: "MIG-3"}}
	for i, plan := range []gpuinject.Plan{granted("one", "default", "", 0, 1), granted("two", "k8s.io", "train", 0), granted("idle", "default", "", 1), mig} {
		c := plan.Container
		f.bundle("state", c.Namespace, c.ID, 10*(i+1), plan)
		f.process(10*(i+1), "/bin/"+c.ID, "/"+c.Namespace+"/"+c.ID)
	}
	f.process(11, "/bin/worker", "/default/one/a")
	f.process(90, "/usr/bin/Xorg", "/")
	inventory := device.Inventory{
		DriverVersion: "580.1.2",
		GPUs: []device.GPU{
			{Index: 0, Minor: 1, UUID: "GPU-0", BusID: "0000:00:00.0", Model: "NVIDIA H100 80GB HBM3"},
			{Index: 1, Minor: 0, UUID: "GPU-1", BusID: "0000:01:00.0", Model: "NVIDIA H100 80GB HBM3"},
		},
		MIG: []device.Instance{{GPU: 1, GI: 3, CI: 0}},
	}
	return f, inventory, nvml.Snapshot{
		CUDA: "13.0", GPUs: []nvml.GPU{
			// NVML's order is not that of procfs here.
			{
				Facts: device.GPUFacts{UUID: "GPU-1", BusID: "0000:01:00.0", Instances: []device.InstanceFacts{{UUID: "MIG-3", GI: 3, Name: "1g.10gb"}}},
				State: nvml.State{Processes: []nvml.Process{{PID: 10, Type: "C", Memory: of(uint64(1 << 30))}, {PID: 90, Type: "G", Memory: of(uint64(5 << 20))}}},
				Instances: []nvml.State{{
					Memory:    nvml.MemoryState{Used: of(uint64(3 << 20)), Total: of(uint64(10 << 30))},
					Processes: []nvml.Process{{PID: 40, Type: "C", Memory: of(uint64(3 << 20))}},
				}},
			},
			{
				Facts:       device.GPUFacts{UUID: "GPU-0", BusID: "0000:00:00.0"},
				Utilization: nvml.Utilization{GPU: of(uint32(93))},
				Sensors:     nvml.Sensors{Temperature: of(uint32(41)), Power: of(uint32(118600)), PowerLimit: of(uint32(700000)), Corrected: of(uint64(3)), Uncorrected: of(uint64(0))},
				State: nvml.State{
					Memory: nvml.MemoryState{Used: of(uint64(3 << 30)), Total: of(uint64(80 << 30))},
					Processes: []nvml.Process{
						{PID: 10, Type: "C", Memory: of(uint64(1 << 30)), Utilization: of(uint32(70))},
						{PID: 11, Type: "C", Memory: of(uint64(1 << 20)), Utilization: of(uint32(2))}, {PID: 20, Type: "C+G", Utilization: of(uint32(0))},
					},
				},
			},
		},
	}
}

// The line of every table fits a terminal of 80 columns.
const statusText = `Driver 580.1.2, CUDA 13.0
GPU    MEMORY          UTIL  HELD BY         MODEL
0      3072/81920 MiB  93%   one team/train  NVIDIA H100 80GB HBM3
1      -               -     idle one        NVIDIA H100 80GB HBM3
1:3/0  3/10240 MiB     -     mig             MIG 1g.10gb

GPU  TEMP  POWER      ECC ERRORS        LAST XID
0    41°C  119/700 W  3, 0 uncorrected  -

CONTAINER        GPU    MEMORY    UTIL  PROCESSES  NAMESPACE  ID
idle             1      0 MiB     -     0          default    idle
mig              1:3/0  3 MiB     -     1          default    mig
one              0      1025 MiB  72%   2          default    one
                 1      1024 MiB  -     1
team/train/main  0      -         0%    1          k8s.io     two

GPU    PID  USER  MEMORY    UTIL  PROCESS  CONTAINER
0      10   0     1024 MiB  70%   one      one
0      11   0     1 MiB     2%    worker   one
0      20   0     -         0%    two      team/train
1      10   0     1024 MiB  -     one      one
1      90   root  5 MiB     -     Xorg     -
1:3/0  40   0     3 MiB     -     mig      mig
`

func print(t *testing.T, s *Status) string {
	t.Helper()
	var b bytes.Buffer
	s.Print(term.New(&b))
	return b.String()
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	testtree.Check(t, err)
	return string(data)
}

func TestStatusJoinsRecordsAndNVML(t *testing.T) {
	f, inventory, live := statusFixture(t)
	s := Join(f.Proc, inventory, live, nil, f.Read())
	if got := print(t, s); got != statusText {
		t.Errorf("got\n%s\nwant\n%s", got, statusText)
	}
	for _, want := range []string{
		`"containers":["one","two"],"mig":[]}`,
		`"utilization":{"gpu_percent":93},"sensors":{"temperature_celsius":41,"power_milliwatts":118600,"power_limit_milliwatts":700000,"ecc_corrected":3,"ecc_uncorrected":0},"memory":{"total_bytes":85899345920,"used_bytes":3221225472},"processes":[{"pid":10,"type":"C","memory_bytes":1073741824,"gpu_percent":70,"name":"one","user":"0","container":"one"}`,
		`"mig":[{"uuid":"MIG-3","gi":3,"ci":0,"profile":"1g.10gb","memory":{"total_bytes":10737418240,"used_bytes":3145728},"processes":[{"pid":40,`,
		`{"id":"two","namespace":"k8s.io","pod_namespace":"team","pod":"train","name":"main","pid":20,"gpus":["GPU-0"],"mig":[],"capabilities":["compute"],"grant":"because","processes":1,"use":[{"name":"0","uuid":"GPU-0","from":"processes","device_memory_bytes":85899345920,"gpu_percent":0,"processes":1}]}`,
		`"gpus":["GPU-0","GPU-1"],"mig":[],"capabilities":["compute"],"grant":"because","memory_bytes":2148532224,"processes":2,"use":[{"name":"0","uuid":"GPU-0","from":"processes","memory_bytes":1074790400,"device_memory_bytes":85899345920,"gpu_percent":72,"processes":2},{"name":"1","uuid":"GPU-1","from":"processes","memory_bytes":1073741824,"processes":1}]}`,
		`"use":[{"name":"1:3/0","uuid":"MIG-3","from":"processes","memory_bytes":3145728,"device_memory_bytes":10737418240,"processes":1}]}`,
	} {
		if got := asJSON(t, s); !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

func TestWhatIsLeftAfterGPUMemoryWasMoved(t *testing.T) {
	f, inventory, live := statusFixture(t)
	f.Write("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 3072 kB\n")
	left := func(s *Status, containers ...string) string {
		var b bytes.Buffer
		s.PrintLeft(term.New(&b), f.Proc, containers)
		return b.String()
	}
	s := Join(f.Proc, inventory, live, nil, f.Read())
	for _, test := range []struct {
		containers []string
		want       string
	}{
		{[]string{"one"}, "GPU 0: 3072 of 81920 MiB in use\nGPU 1: memory in use is unknown\nhost: 3 MiB of memory available\n"},
		{[]string{"mig", "two"}, "GPU 0: 3072 of 81920 MiB in use\nGPU 1:3/0: 3 of 10240 MiB in use\nhost: 3 MiB of memory available\n"},
	} {
		if got := left(s, test.containers...); got != test.want {
			t.Errorf("%v: got\n%s\nwant\n%s", test.containers, got, test.want)
		}
	}
	s = Join(f.Proc, inventory, nvml.Snapshot{}, errors.New("NVML does not answer"), f.Read())
	f.Write("proc/meminfo", "MemTotal: 4096 kB\n")
	if got := left(s, "two"); got != "GPU 0: memory in use is unknown\n" {
		t.Errorf("without an answer: %s", got)
	}
}

func TestStatusWithoutNVMLShowsGrants(t *testing.T) {
	f, inventory, _ := statusFixture(t)
	s := Join(f.Proc, inventory, nvml.Snapshot{}, errors.New("NVML does not answer"), f.Read())
	for _, field := range []string{"memory", "utilization", "processes"} {
		if got := asJSON(t, s); strings.Contains(got, field) {
			t.Errorf("the unknown field %q is in\n%s", field, got)
		}
	}
	for _, want := range []string{"NVML: NVML does not answer\n", "0      -       -     one team/train", "mig              1:3/0  -       -"} {
		if got := print(t, s); !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestAGPUThatNVMLDoesNotListIsShown(t *testing.T) {
	f, inventory, live := statusFixture(t)
	live.GPUs, live.Error = live.GPUs[:1], "GPU is lost"
	s := Join(f.Proc, inventory, live, nil, nil)
	if s.GPUs[0].Error != "GPU is lost" || s.GPUs[0].Memory != nil || s.GPUs[1].Memory == nil {
		t.Errorf("%s", asJSON(t, s))
	}
	if got := print(t, s); !strings.Contains(got, "GPU 0: GPU is lost\n") || !strings.Contains(got, "no container has a GPU\n") {
		t.Errorf("got\n%s", got)
	}
}

// FuzzRecord takes any bytes as the shim's record of a container. What is printed of it cannot
// control a terminal.
func FuzzRecord(f *testing.F) {
	for _, record := range []any{
		granted("aa", "k8s.io", "train", 0), granted("\x1b[2J", "default\nx", "\r\u202e", 99),
		gpuinject.Plan{GPU: true, Container: &gpuinject.PlanContainer{}}, map[string]any{"gpu": true, "mig": []any{nil}},
	} {
		text, err := json.Marshal(record)
		testtree.Check(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fix := newFixture(t)
		fix.Write(filepath.Join("state", tasksDir, "default/aa", gpuinject.RecordName), string(text))
		inventory := device.Inventory{DriverVersion: "580.1", GPUs: []device.GPU{{BusID: "0000:00:00.0"}}}
		var b bytes.Buffer
		Join(fix.Proc, inventory, nvml.Snapshot{}, errors.New("no NVML"), fix.Read()).Print(term.New(&b))
		if i := strings.IndexFunc(b.String(), func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) }); i >= 0 {
			t.Errorf("%q", b.String()[i:])
		}
	})
}

func TestStateDirsAreThoseOfTheDaemons(t *testing.T) {
	if want := []string{"/run/containerd", "/run/k3s/containerd", "/run/docker/containerd/daemon"}; !slices.Equal(StateDirs, want) {
		t.Errorf("%q, want %q", StateDirs, want)
	}
}
