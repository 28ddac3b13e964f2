package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

func TestMain(m *testing.M) { simhost.Main(m) }

// newDriver has a GPU that stays healthy, one to break, and a third with two MIG devices of which
// the first is to break.
func newDriver(t *testing.T) *sim.Driver {
	return sim.New(t, sim.Options{
		GPUs: 3, MIG: []sim.MIGDevice{{GPU: 2, GI: 5, CI: 0}, {GPU: 2, GI: 9, CI: 0}},
	})
}

const (
	healthy, broken, divided = 0, 1, 2 // GPUs
	brokenMIG, healthyMIG    = 0, 1
)

type plan struct {
	GPUs     []struct{ Index int }   `json:"gpus"`
	MIG      []struct{ UUID string } `json:"mig"`
	Warnings []string                `json:"warnings"`
	Error    string                  `json:"error"`
}

// ctl runs nvidia-shimctl on the driver's host. No question may take longer than limit.
func ctl(t *testing.T, d *sim.Driver, args ...string) string {
	t.Helper()
	const limit = 15 * time.Second
	cmd := exec.Command(filepath.Join(testenv.ShimDir(), version.Ctl), append([]string{"--config", d.ConfigPath, "--json"}, args...)...)
	r, err := testenv.Output(limit, cmd)
	if err != nil {
		t.Fatalf("nvidia-shimctl %s: %v: %s", strings.Join(args, " "), err, r.Error)
	}
	return r.Output
}

// ask returns the plan of a container with these devices, whose image also has a requirement that
// only NVML can decide.
func ask(t *testing.T, d *sim.Driver, devices string) (p plan) {
	t.Helper()
	out := ctl(t, d, "plan", "--env", "NVIDIA_VISIBLE_DEVICES="+devices, "--env", "NVIDIA_REQUIRE_ARCH=arch>=5.0")
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return p
}

// forget removes NVML's kept answer.
func forget(t *testing.T, d *sim.Driver) {
	t.Helper()
	testtree.Check(t, os.RemoveAll(filepath.Join(d.StateDir, "nvml.json")))
}

// starts fails the test unless a container with these devices gets so many GPUs and MIG devices.
func starts(t *testing.T, d *sim.Driver, devices string, gpus, mig int) plan {
	t.Helper()
	p := ask(t, d, devices)
	if p.Error != "" || len(p.GPUs) != gpus || len(p.MIG) != mig {
		t.Errorf("%s: %d GPUs and %d MIG devices, want %d and %d: %s", devices, len(p.GPUs), len(p.MIG), gpus, mig, p.Error)
	}
	return p
}

// refused fails the test unless a container with these devices is refused with all of the words.
func refused(t *testing.T, d *sim.Driver, devices string, words ...string) {
	t.Helper()
	p := ask(t, d, devices)
	for _, word := range words {
		if !strings.Contains(p.Error, word) {
			t.Errorf("%s: the refusal lacks %q: %q", devices, word, p.Error)
		}
	}
}

// contents are what a broken file holds; nil is no file.
var contents = map[string][]byte{"missing": nil, "empty": {}, "garbage": []byte("Model: \x00\xff\nDevice Minor: zero\nDeviceFileMinor: -\n")}

// spoil breaks a file until the test ends.
func spoil(t *testing.T, file string, content []byte) {
	t.Helper()
	before, err := os.ReadFile(file)
	testtree.Check(t, err)
	t.Cleanup(func() { testtree.Check(t, os.WriteFile(file, before, 0o444)) })
	testtree.Check(t, os.Remove(file))
	if content != nil {
		testtree.Check(t, os.WriteFile(file, content, 0o444))
	}
}

func TestAFileOfOneGPUIsBroken(t *testing.T) {
	d := newDriver(t)
	file := filepath.Join(d.ProcRoot, "driver/nvidia/gpus", d.GPUs[broken].BusID, "information")
	for how, content := range contents {
		t.Run(how, func(t *testing.T) {
			spoil(t, file, content)
			starts(t, d, d.GPUs[healthy].UUID, 1, 0)
			starts(t, d, d.MIG[healthyMIG].UUID, 0, 1)
			p := starts(t, d, "all", 1, 2)
			if len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], file) {
				t.Errorf("warnings %q", p.Warnings)
			}
			for _, id := range []string{"1", d.GPUs[broken].BusID} {
				refused(t, d, id, "GPU 1", "cannot be used", file)
			}
			shown(t, d, file)
		})
	}
}

func TestAFileOfOneMIGDeviceIsBroken(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	dir := filepath.Join(d.ProcRoot, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi5", d.GPUs[divided].Minor))
	for _, file := range []string{filepath.Join(dir, "access"), filepath.Join(dir, "ci0/access")} {
		for how, content := range contents {
			t.Run(filepath.Base(filepath.Dir(file))+" "+how, func(t *testing.T) {
				spoil(t, file, content)
				starts(t, d, "0,1", 2, 0)
				starts(t, d, d.MIG[healthyMIG].UUID, 0, 1)
				starts(t, d, "all", 2, 1)
				for _, id := range []string{d.MIG[brokenMIG].UUID, "MIG-" + d.GPUs[divided].UUID + "/5/0"} {
					refused(t, d, id, "MIG device", "cannot be used", file)
				}
				refused(t, d, "2", "partitioned by MIG")
				shown(t, d, file)
			})
		}
	}
}

// shown fails the test unless info, status and check name the file.
func shown(t *testing.T, d *sim.Driver, file string) {
	t.Helper()
	for _, command := range []string{"info", "status", "check"} {
		if out := ctl(t, d, command); !strings.Contains(out, file) {
			t.Errorf("%s does not name %s: %s", command, file, out)
		}
	}
}

// Each file of the driver in procfs, missing, empty or with garbage: containers with other devices get
// theirs, and those of the device that the file describes are refused with its name. A file that
// no one reads changes nothing, and without one of the whole driver nothing starts.
func TestAnyFileIsBroken(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	ofAll := map[string]bool{"devices": true, "driver/nvidia/version": true}
	gpus := []string{"0", "1", "2"}
	migs := []string{d.MIG[brokenMIG].UUID, d.MIG[healthyMIG].UUID}
	touched := map[string][]string{} // by file: the devices that it describes
	for i, g := range d.GPUs {
		touched["driver/nvidia/gpus/"+g.BusID+"/information"] = gpus[i : i+1]
	}
	touched["driver/nvidia/gpus/"+d.GPUs[divided].BusID+"/information"] = append(gpus[divided:], migs...)
	for i, m := range d.MIG {
		gi := fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d/", d.GPUs[divided].Minor, m.GI)
		touched[gi+"access"], touched[gi+"ci0/access"] = migs[i:i+1], migs[i:i+1]
	}
	tried := 0
	err := fs.WalkDir(os.DirFS(d.ProcRoot), ".", func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		tried++
		for how, content := range contents {
			t.Run(file+" "+how, func(t *testing.T) {
				spoil(t, filepath.Join(d.ProcRoot, file), content)
				forget(t, d)
				usable := slices.Concat(gpus[:divided], migs)
				if !ofAll[file] && touched[file] == nil {
					starts(t, d, strings.Join(usable, ","), divided, len(migs))
					return
				}
				for _, id := range usable {
					p := ask(t, d, id)
					switch isTouched := slices.Contains(touched[file], id); {
					case ofAll[file] || isTouched:
						if !strings.Contains(p.Error, "/proc/") || isTouched && (!strings.Contains(p.Error, "cannot be used") || !strings.Contains(p.Error, file)) {
							t.Errorf("%s: %q", id, p.Error)
						}
					case p.Error != "" || len(p.GPUs)+len(p.MIG) != 1:
						t.Errorf("%s: %d GPUs, %d MIG devices, %q", id, len(p.GPUs), len(p.MIG), p.Error)
					}
				}
			})
		}
		return nil
	})
	testtree.Check(t, err)
	if tried < 20 || tried < len(touched)+len(ofAll) {
		t.Errorf("only %d files", tried)
	}
}

func TestEveryMIGDeviceOfAGPUIsBroken(t *testing.T) {
	d := newDriver(t)
	for _, gi := range []string{"gi5", "gi9"} {
		spoil(t, filepath.Join(d.ProcRoot, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/%s/access", d.GPUs[divided].Minor, gi)), []byte{})
	}
	starts(t, d, "all", 2, 0)
	refused(t, d, "2", "partitioned by MIG", "cannot be used")
}

func TestAllIsRefusedIfConfigured(t *testing.T) {
	d := newDriver(t)
	simhost.Append(t, d.ConfigPath, "[policy]\nfaulty-gpus = \"refuse\"\n")
	starts(t, d, "all", 2, 2)
	spoil(t, filepath.Join(d.ProcRoot, "driver/nvidia/gpus", d.GPUs[broken].BusID, "information"), []byte{})
	refused(t, d, "all", "GPU 1", "leave-out")
	starts(t, d, "0", 1, 0)
}

// The results of NVML: NVML_ERROR_GPU_IS_LOST, _UNKNOWN, _NOT_SUPPORTED, and _FUNCTION_NOT_FOUND, which
// go-nvml gives for a function that this driver's library lacks.
var results = map[string]int{"lost": 15, "unknown": 999, "not supported": 3, "missing": 13}

func TestACallOfNVMLFailsForOneGPU(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	for _, call := range []struct {
		name     string
		required map[string]bool // the requirement cannot be decided after these results
	}{
		{"nvmlDeviceGetHandleByIndex_v2", map[string]bool{"lost": true, "unknown": true, "not supported": true}},
		{"nvmlDeviceGetPciInfo_v3", map[string]bool{"lost": true, "unknown": true, "not supported": true}},
		{"nvmlDeviceGetMinorNumber", map[string]bool{"lost": true, "unknown": true, "not supported": true}},
		{"nvmlDeviceGetUUID", map[string]bool{"lost": true, "unknown": true, "not supported": true}},
		{"nvmlDeviceGetName", map[string]bool{"lost": true, "unknown": true, "not supported": true}},
		{"nvmlDeviceGetBrand", map[string]bool{"lost": true, "unknown": true}},
		{"nvmlDeviceGetCudaComputeCapability", map[string]bool{"lost": true, "unknown": true, "not supported": true}},
		{"nvmlDeviceGetMigMode", nil},
	} {
		for result, code := range results {
			t.Run(call.name+" "+result, func(t *testing.T) {
				testtree.Check(t, d.Faults(sim.Fault{Function: call.name, UUID: d.GPUs[broken].UUID, Code: code}))
				forget(t, d)
				starts(t, d, "0,"+d.MIG[healthyMIG].UUID, 1, 1)
				forget(t, d)
				if call.required[result] || result == "missing" && call.required["not supported"] {
					refused(t, d, "1", "NVIDIA_REQUIRE_ARCH", "GPU 1")
					if result == "lost" {
						named(t, d, "NVML does not report")
					}
				} else {
					starts(t, d, "1", 1, 0)
				}
			})
		}
	}
}

func TestACallOfNVMLFailsForOneMIGDevice(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	for _, call := range []string{"nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetName"} {
		for result, code := range results {
			t.Run(call+" "+result, func(t *testing.T) {
				testtree.Check(t, d.Faults(sim.Fault{Function: call, UUID: d.MIG[brokenMIG].UUID, Code: code}))
				forget(t, d)
				starts(t, d, "0,"+d.MIG[healthyMIG].UUID, 1, 1)
				forget(t, d)
				refused(t, d, d.MIG[brokenMIG].UUID, "MIG device 2:", "NVML does not report")
				if result == "lost" {
					named(t, d, "NVML does not report")
				}
			})
		}
	}
}

// NVML does not list the MIG devices of a GPU: their UUIDs are not known then, and their older names are.
func TestTheListOfMIGDevicesFails(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	for _, call := range []string{"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"} {
		for result, code := range results {
			t.Run(call+" "+result, func(t *testing.T) {
				testtree.Check(t, d.Faults(sim.Fault{Function: call, UUID: d.GPUs[divided].UUID, Code: code}))
				forget(t, d)
				starts(t, d, "0,1", 2, 0)
				forget(t, d)
				refused(t, d, d.MIG[healthyMIG].UUID, "2", "NVML does not report")
				named(t, d, "NVML does not report")
				starts(t, d, fmt.Sprintf("MIG-%s/%d/%d", d.GPUs[divided].UUID, d.MIG[healthyMIG].GI, d.MIG[healthyMIG].CI), 0, 1)
			})
		}
	}
}

// named fails the test unless info and status, of which serve makes its page, name the reason for which
// NVML's answer about a device is not complete.
func named(t *testing.T, d *sim.Driver, reason string) {
	t.Helper()
	for _, command := range []string{"info", "status"} {
		if out := ctl(t, d, command); !strings.Contains(out, reason) {
			t.Errorf("%s does not say %q: %s", command, reason, out)
		}
	}
}

// serve's page and its metrics have what status has.
func TestServeShowsTheFault(t *testing.T) {
	d := newDriver(t)
	serve := &testenv.Command{Name: "serve", Dir: t.TempDir(), Log: filepath.Join(t.TempDir(), "log"),
		Argv: []string{filepath.Join(testenv.ShimDir(), version.Ctl), "--config", d.ConfigPath, "serve", "--listen", "127.0.0.1:0", "--state", t.TempDir()}}
	testtree.Check(t, serve.Start())
	t.Cleanup(serve.Stop)
	address := ""
	testenv.Await(t, "serve", func() bool {
		_, address, _ = strings.Cut(serve.Tail(8<<10), "listening on ")
		address, _, _ = strings.Cut(address, "\n")
		return address != ""
	})
	get := func(path string) string {
		r, err := http.Get("http://" + address + path)
		testtree.Check(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		testtree.Check(t, err)
		return string(text)
	}
	for _, f := range []struct {
		call, uuid, page, metric string
	}{
		{"nvmlDeviceGetHandleByIndex_v2", d.GPUs[broken].UUID, "NVML does not report the handle of GPU 1: GPU is lost", `gpu="1"`},
		{"nvmlDeviceGetPciInfo_v3", d.GPUs[broken].UUID, "NVML does not report the PCI address: GPU is lost", `gpu="1"`},
		{"nvmlDeviceGetUUID", d.MIG[brokenMIG].UUID, "MIG device 2:0: NVML does not report the UUID: GPU is lost", `gpu="2"`},
	} {
		testtree.Check(t, d.Faults(sim.Fault{Function: f.call, UUID: f.uuid, Code: results["lost"]}))
		testenv.Await(t, f.page, func() bool { return strings.Contains(get("/"), f.page) })
		for line := range strings.Lines(get("/metrics")) {
			if strings.HasPrefix(line, "nvidia_shim_gpu_error{") && strings.HasSuffix(line, " 1\n") != strings.Contains(line, f.metric) {
				t.Errorf("%s: %s", f.call, line)
			}
		}
	}
}

// What NVML answers for one GPU or MIG device is empty, or garbage.
func TestNVMLAnswersGarbageForOneGPU(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	const text, number = "\x01\xff\x1b[31m?", "4294967295"
	for _, call := range []struct {
		name   string
		values []string
		reason string // the requirement cannot be decided then; "": it can
	}{
		{"nvmlDeviceGetUUID", []string{"", text, d.MIG[healthyMIG].UUID[:20]}, "NVML reports the UUID"},
		{"nvmlDeviceGetPciInfo_v3", []string{"", text}, "NVML reports the PCI address"},
		{"nvmlDeviceGetCudaComputeCapability", []string{"", number}, "NVML reports the compute capability"},
		{"nvmlDeviceGetName", []string{"", text}, ""},
		{"nvmlDeviceGetBrand", []string{"", number}, ""},
		{"nvmlDeviceGetMinorNumber", []string{"", number}, ""},
		{"nvmlDeviceGetMigMode", []string{"", number}, ""},
	} {
		for _, value := range call.values {
			t.Run(fmt.Sprintf("%s %q", call.name, value), func(t *testing.T) {
				testtree.Check(t, d.Answers(sim.Answer{Function: call.name, UUID: d.GPUs[broken].UUID, Value: value}))
				forget(t, d)
				starts(t, d, "0,"+d.MIG[healthyMIG].UUID, 1, 1)
				forget(t, d)
				if call.reason == "" {
					starts(t, d, "1", 1, 0)
					return
				}
				refused(t, d, "1", "NVIDIA_REQUIRE_ARCH", "GPU 1", call.reason)
				named(t, d, call.reason)
			})
		}
	}
}

func TestNVMLAnswersGarbageForOneMIGDevice(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	const text, number = "\x01\xff\x1b[31m?", "4294967295"
	healthy := d.MIG[healthyMIG]
	for _, cell := range []struct{ call, value, reason string }{
		{"nvmlDeviceGetUUID", "", "NVML reports the UUID"},
		{"nvmlDeviceGetUUID", text, "NVML reports the UUID"},
		{"nvmlDeviceGetGpuInstanceId", number, "NVML reports the GPU instance"},
		{"nvmlDeviceGetComputeInstanceId", number, "NVML reports the compute instance"},
	} {
		t.Run(fmt.Sprintf("%s %q", cell.call, cell.value), func(t *testing.T) {
			testtree.Check(t, d.Answers(sim.Answer{Function: cell.call, UUID: d.MIG[brokenMIG].UUID, Value: cell.value}))
			forget(t, d)
			starts(t, d, "0,"+healthy.UUID, 1, 1)
			forget(t, d)
			refused(t, d, d.MIG[brokenMIG].UUID, "MIG device 2:0", cell.reason)
			named(t, d, cell.reason)
		})
	}
	t.Run("the instances of another", func(t *testing.T) {
		testtree.Check(t, d.Answers(sim.Answer{Function: "nvmlDeviceGetGpuInstanceId", UUID: d.MIG[brokenMIG].UUID, Value: fmt.Sprint(healthy.GI)}))
		for _, m := range d.MIG {
			forget(t, d)
			refused(t, d, m.UUID, "NVML reports the instances 9/0 for 2 MIG devices")
		}
		starts(t, d, "0,1", 2, 0)
		starts(t, d, fmt.Sprintf("MIG-%s/%d/%d", d.GPUs[divided].UUID, healthy.GI, healthy.CI), 0, 1)
	})
	for _, count := range []string{number, "2147483647"} {
		t.Run(count+" MIG devices", func(t *testing.T) {
			testtree.Check(t, d.Answers(sim.Answer{Function: "nvmlDeviceGetMaxMigDeviceCount", UUID: d.GPUs[divided].UUID, Value: count}))
			forget(t, d)
			starts(t, d, "0,1", 2, 0)
			refused(t, d, healthy.UUID, "GPU 2", "NVML reports the number of MIG devices")
			named(t, d, "NVML reports the number of MIG devices")
		})
	}
}

// Each call in turn hangs for a GPU, or for a MIG device. The calls wait at once, each on a driver of
// its own, since a question waits for seconds.
func TestACallOfNVMLHangs(t *testing.T) {
	gpu := []string{
		"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetUUID", "nvmlDeviceGetName",
		"nvmlDeviceGetBrand", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMigMode",
	}
	mig := []string{"nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetName"}
	var cells sync.WaitGroup
	cell := func(call string, device func(*sim.Driver) (uuid, id, name string), others func(*testing.T, *sim.Driver)) {
		d := newDriver(t)
		uuid, id, name := device(d)
		cells.Go(func() {
			t.Run(call+" of "+name, func(t *testing.T) {
				testtree.Check(t, d.Faults(sim.Fault{Function: call, UUID: uuid, Code: sim.Wait}))
				starts(t, d, "0", 1, 0)
				others(t, d)
				refused(t, d, id, name, "hangs")
			})
		})
	}
	for _, call := range gpu {
		cell(call, func(d *sim.Driver) (uuid, id, name string) { return d.GPUs[broken].UUID, "1", "GPU 1" },
			func(t *testing.T, d *sim.Driver) { starts(t, d, d.MIG[healthyMIG].UUID, 0, 1) })
	}
	for _, call := range mig {
		cell(call, func(d *sim.Driver) (uuid, id, name string) {
			return d.MIG[brokenMIG].UUID, d.MIG[brokenMIG].UUID, "GPU 2"
		},
			func(t *testing.T, d *sim.Driver) { starts(t, d, "1", 1, 0) })
	}
	cells.Wait()
}

// With a real containerd: the container of another GPU runs, the faulty one's is refused and leaves
// nothing behind, and "all" warns in containerd's log.
func TestAFaultyGPUUnderContainerd(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 2}})
	file := filepath.Join(h.Driver.ProcRoot, "driver/nvidia/gpus", h.Driver.GPUs[0].BusID, "information")
	spoil(t, file, []byte{})
	script := []string{"/bin/sh", "-c", "ls /dev | grep '^nvidia[0-9]'"}
	for _, devices := range []string{"1", "all"} {
		o := simhost.Visible(devices)
		o.Args, o.ID = script, "faulty-"+devices
		if out := h.MustRun(t, o); out != fmt.Sprintf("nvidia%d\n", h.Driver.GPUs[1].Minor) {
			t.Errorf("%s: nodes %q", devices, out)
		}
	}
	if lines := h.LogLines("faulty-all", "warning"); len(lines) != 1 || !strings.Contains(lines[0], file) {
		t.Errorf("warnings %q", lines)
	}
	before := h.Snapshot(t, h.State)
	h.Refused(t, simhost.Visible("0"), "GPU 0", "cannot be used", file)
	before.AssertUnchanged(t)
}

// With a real containerd and serve: the container of a sick GPU starts with a warning, or is refused
// and leaves nothing behind. Without the watcher it starts when the file is old.
func TestASickGPUUnderContainerd(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 2}})
	serve := &testenv.Command{Name: "serve", Dir: t.TempDir(), Log: filepath.Join(t.TempDir(), "log"),
		Argv: []string{filepath.Join(testenv.ShimDir(), version.Ctl), "--config", h.Driver.ConfigPath, "serve", "--listen", "127.0.0.1:0"}}
	testtree.Check(t, serve.Start())
	t.Cleanup(serve.Stop)
	name := filepath.Join(h.Driver.StateDir, health.Name)
	testenv.Await(t, "the health file", func() bool { _, err := os.Stat(name); return err == nil })
	o := simhost.Visible("0")
	o.Args, o.ID = []string{"/bin/true"}, "healthy"
	h.MustRun(t, o)
	testtree.Check(t, h.Driver.Xid(h.Driver.GPUs[0].UUID, 79))
	testenv.Await(t, "the Xid", func() bool { text, _ := os.ReadFile(name); return strings.Contains(string(text), "Xid 79") })
	o.ID = "warned"
	h.MustRun(t, o)
	if lines := h.LogLines("warned", "warning"); len(lines) != 1 || !strings.Contains(lines[0], "GPU 0 is unhealthy since") || !strings.Contains(lines[0], "Xid 79") {
		t.Errorf("warnings %q", lines)
	}
	if lines := h.LogLines("healthy", "warning"); len(lines) > 0 {
		t.Errorf("warnings of a healthy GPU: %q", lines)
	}
	simhost.Append(t, h.Driver.ConfigPath, "[policy]\nhealth = \"refuse\"\n")
	before := h.Snapshot(t, h.State)
	h.Refused(t, simhost.Visible("0"), "GPU 0", "cannot be used", "unhealthy since", "Xid 79", "drain the node and reboot it")
	before.AssertUnchanged(t)
	script := []string{"/bin/sh", "-c", "ls /dev | grep '^nvidia[0-9]'"}
	for _, devices := range []string{"1", "all"} {
		o := simhost.Visible(devices)
		o.Args, o.ID = script, "sick-"+devices
		if out := h.MustRun(t, o); out != fmt.Sprintf("nvidia%d\n", h.Driver.GPUs[1].Minor) {
			t.Errorf("%s: nodes %q", devices, out)
		}
	}
	serve.Stop()
	old, err := health.Load(h.Driver.StateDir)
	testtree.Check(t, err)
	old.Time = old.Time.Add(-health.Valid)
	testtree.Check(t, health.Write(h.Driver.StateDir, old))
	o.ID = "unwatched"
	h.MustRun(t, o)
}

// The driver's packages were upgraded and the module was not: containers get the loaded driver's
// files while a view holds them.
func TestUserSpaceIsUpgradedUnderTheLoadedModule(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 1}})
	loaded := h.Driver.Version
	o := simhost.Visible("0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
	o.Args = []string{"/bin/sh", "-c", "/test/dlopen libcuda.so.1 && ls /usr/local/nvidia/lib64"}
	was := h.MustRun(t, o)
	testtree.Check(t, h.Driver.Upgrade("999.1.2"))
	testtree.Check(t, h.Driver.LoadModule(loaded))
	o.ID = "replaced"
	if out := h.MustRun(t, o); out != was || !strings.Contains(out, "libcuda.so."+loaded) {
		t.Errorf("it was\n%s\nand is\n%s", was, out)
	}
	if lines := h.LogLines("replaced", "warning"); len(lines) != 1 || !strings.Contains(lines[0], "until the next reboot") || !strings.Contains(lines[0], "999.1.2") {
		t.Errorf("warnings %q", lines)
	}
	for _, command := range []string{"check", "status"} {
		if out := ctl(t, h.Driver, command); !strings.Contains(out, "999.1.2") || !strings.Contains(out, loaded) || command == "check" && !strings.Contains(out, "reboot") {
			t.Errorf("%s does not say it: %s", command, out)
		}
	}
	before := h.Snapshot(t, h.State)
	h.Refused(t, simhost.Visible("0", "NVIDIA_DRIVER_CAPABILITIES=all"), "999.1.2", loaded, "reboot")
	before.AssertUnchanged(t)
	testtree.Check(t, h.Driver.LoadModule("999.1.2"))
	o.ID = "rebooted"
	if out := h.MustRun(t, o); !strings.Contains(out, "libcuda.so.999.1.2") || strings.Contains(out, loaded) {
		t.Errorf("after the reboot:\n%s", out)
	}
}

// A view in which a file is not what it was is not used.
func TestAReplacedFileOfTheViewIsNotUsed(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 1}})
	loaded := h.Driver.Version
	h.MustRun(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Args: []string{"/bin/true"}})
	f, err := os.OpenFile(filepath.Join(h.Driver.Root, simhost.Multiarch, "libcuda.so."+loaded), os.O_WRONLY|os.O_APPEND, 0)
	testtree.Check(t, err)
	_, err = f.WriteString("x")
	testtree.Check(t, err)
	testtree.Check(t, f.Close())
	testtree.Check(t, h.Driver.Upgrade("999.1.2"))
	testtree.Check(t, h.Driver.LoadModule(loaded))
	h.Refused(t, simhost.Visible("0"), "999.1.2", loaded, "reboot")
}
