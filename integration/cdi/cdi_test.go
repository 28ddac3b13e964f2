package cdi

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/record"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func TestMain(m *testing.M) { simhost.Main(m) }

// object is a part of a CDI specification.
type object map[string]any

// writeSpec writes what nvidia-ctk does for the GPUs of the simulated host.
func writeSpec(t *testing.T, d *sim.Driver, hook string) {
	t.Helper()
	node := func(name string) object {
		return object{"path": "/dev/" + name, "hostPath": d.DevRoot + "/dev/" + name}
	}
	lib := "/" + d.Layout.LibDir() + "/"
	var mounts []object
	for _, name := range []string{lib + "libcuda.so." + d.Version, lib + "libnvidia-ml.so." + d.Version, "/" + d.Layout.BinDir() + "/nvidia-smi"} {
		mounts = append(mounts, object{"hostPath": d.Root + name, "containerPath": name, "options": []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}})
	}
	var devices []object
	for _, g := range d.GPUs {
		devices = append(devices, object{"name": fmt.Sprint(g.Index), "containerEdits": object{"deviceNodes": []object{node(fmt.Sprintf("nvidia%d", g.Minor))}}})
	}
	data, err := json.Marshal(object{"cdiVersion": "0.5.0", "kind": kind, "devices": devices, "containerEdits": object{
		"env":         []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=" + lib},
		"deviceNodes": []object{node("nvidiactl"), node("nvidia-uvm"), node("nvidia-uvm-tools")},
		"mounts":      mounts,
		"hooks": []object{
			{"hookName": "createContainer", "path": hook, "args": []string{"nvidia-cdi-hook", "update-ldcache", "--folder", lib}, "env": []string{"NVIDIA_CTK_DEBUG=false"}},
			{"hookName": "createContainer", "path": hook, "args": []string{"nvidia-cdi-hook", "disable-device-node-modification"}},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	placeSpec(t, data)
}

// kind is that of the specifications. It is this process's own, so that neither those of the host
// nor another test process's come into it.
var kind = fmt.Sprintf("simulated-%d.test/gpu", os.Getpid())

// placeSpec puts a specification where ctr, which resolves CDI names itself, looks for it.
func placeSpec(t *testing.T, data []byte) {
	t.Helper()
	const dir = "/run/cdi"
	testenv.ShareForTest(t, dir)
	name := filepath.Join(dir, strings.Replace(kind, "/", "-", 1)+".json")
	testtree.Check(t, os.WriteFile(name, data, 0o644))
	t.Cleanup(func() { os.Remove(name) })
}

// placeOwnSpec places the specification that nvidia-shimctl writes.
func placeOwnSpec(t *testing.T, h *simhost.Host) {
	t.Helper()
	placeSpec(t, []byte(strings.Replace(h.Ctl(t, "cdi"), "nvidia.com/gpu", kind, 1)))
}

// containerd's CDI code edits the specification; what NVIDIA's hooks would do to the image, the
// shim does, once.
func TestWhatContainerdsCDIGaveIsTakenOver(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := simhost.New(t, simhost.Options{Env: testenv.Options{Cgroup: version}})
		ran := filepath.Join(t.TempDir(), "ran")
		hook := simhost.Script(t, filepath.Join(t.TempDir(), "nvidia-cdi-hook"), "echo \"$@\" >>"+ran+"\n")
		writeSpec(t, h.Driver, hook)
		for _, tc := range []struct {
			name    string
			devices []string
			env     []string
			want    []int
		}{
			{"one GPU", []string{"2"}, nil, []int{2}},
			{"two, of an image that wants all", []string{"0", "3"}, []string{"NVIDIA_VISIBLE_DEVICES=all"}, []int{0, 3}},
		} {
			t.Run(tc.name, func(t *testing.T) {
				// The image's variable goes before what CDI sets only where CDI came first.
				o := testenv.RunOptions{Env: append(tc.env, "NVIDIA_DRIVER_CAPABILITIES=compute,utility"), Args: h.ProbeArgs()}
				o.Args[2] += "\necho == twice; grep -o ' /[^ ]*\\(libcuda.so.1\\|libnvidia-ml.so.1\\|bin/nvidia-smi\\) ' /proc/mounts | grep -v ' /usr/local/nvidia/' | sort | uniq -d; true"
				for _, d := range tc.devices {
					o.Extra = append(o.Extra, "--device", kind+"="+d)
				}
				out := h.MustRun(t, o)
				simhost.Compare(t, simhost.Parse(out), h.Expect(tc.want))
				if _, twice, _ := strings.Cut(out, "== twice\n"); twice != "" {
					t.Errorf("mounted twice: %q", twice)
				}
				if data, err := os.ReadFile(ran); err == nil {
					t.Errorf("NVIDIA's hooks ran: %s", data)
				}
			})
		}
		t.Run("the stock shim runs the hooks, so the test would notice", func(t *testing.T) {
			r := h.Run(t, testenv.RunOptions{Runtime: testenv.StockRuntime, Extra: []string{"--device", kind + "=1"}, Args: []string{"/bin/true"}})
			if _, err := os.Stat(ran); r.ExitCode != 0 || err != nil {
				t.Errorf("exit status %d: %s, %v", r.ExitCode, r.Error, err)
			}
			os.Remove(ran)
		})
		t.Run("the record says so", func(t *testing.T) {
			id := h.Start(t, testenv.RunOptions{Extra: []string{"--device", kind + "=1"}})
			if p := h.Record(t, id); p.Grant != "taken over from CDI: "+h.Driver.GPUs[1].UUID || len(p.RemovedHooks) != 2 {
				t.Errorf("grant %q, hooks %q", p.Grant, p.RemovedHooks)
			}
		})
	})
}

// One specification for every runtime: complete under the stock one, and under the shim the same as
// the variable.
func TestCDISpecificationOfShimctl(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		mig := []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}, {GPU: 1, GI: 5, CI: 0}}
		h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3, MIG: mig}, Env: testenv.Options{Cgroup: version}})
		placeOwnSpec(t, h)
		devices := func(names ...string) (args []string) {
			for _, name := range names {
				args = append(args, "--device", kind+"="+name)
			}
			return args
		}
		run := func(runtime string, devices []string) testenv.Result {
			return h.Run(t, testenv.RunOptions{Runtime: runtime, Extra: devices, Args: h.ProbeArgs()})
		}
		for _, tc := range []struct {
			devices   []string
			gpus, mig []int
		}{
			{devices("0", h.Driver.GPUs[2].UUID), []int{0, 2}, nil},
			{devices("1:1"), nil, []int{1}},
			{devices("2", h.Driver.MIG[0].UUID), []int{2}, []int{0}},
			{devices("all"), []int{0, 2}, []int{0, 1}},
		} {
			for _, runtime := range []string{testenv.StockRuntime, ""} {
				got, want := simhost.Parse(run(runtime, tc.devices).Output), h.ExpectMIG(tc.gpus, tc.mig)
				if runtime == testenv.StockRuntime {
					want.ProcGPUs = got.ProcGPUs // the mask is the shim's
				}
				simhost.Compare(t, got, want)
			}
		}
		byCDI := h.Record(t, h.Start(t, testenv.RunOptions{Extra: devices("0"), Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}}))
		byName := h.Record(t, h.Start(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}}))
		for _, p := range []*record.Record{&byCDI, &byName} {
			p.Reason, p.Asked, p.Grant = "", nil, ""
		}
		if !reflect.DeepEqual(byCDI, byName) {
			t.Errorf("by CDI:\n%+v\nby name:\n%+v", byCDI, byName)
		}
	})
}

// Without hooks the loaders of images find the driver, until an upgrade. Under the shim a stale
// specification still serves, because it only names devices.
func TestCDISpecificationOfShimctlUnderTheStockRuntime(t *testing.T) {
	h := simhost.New(t, simhost.Options{})
	placeOwnSpec(t, h)
	run := func(image, runtime string) testenv.Result {
		return h.Run(t, testenv.RunOptions{Image: h.Load(t, image), Runtime: runtime, Extra: []string{"--device", kind + "=0"},
			Args: []string{"/bin/sh", "-c", "/test/dlopen -s cuDriverGetVersion libcuda.so.1; /test/dlopen libnvidia-ptxjitcompiler.so.1; nvidia-smi -L"}})
	}
	found := []string{"cuDriverGetVersion=13000", "ptxjitcompiler.so.1 OK", h.Driver.GPUs[0].UUID}
	for _, image := range []string{"glibc-nocache", "usrlib64", "large"} {
		simhost.Want(t, run(image, testenv.StockRuntime).Output, found...)
	}
	testtree.Check(t, h.Driver.Upgrade("999.1.2"))
	simhost.Want(t, run("large", "").Output, found[1:]...)
	if r := run("large", testenv.StockRuntime); r.ExitCode == 0 || !strings.Contains(r.Error, sim.DefaultVersion) {
		t.Errorf("a stale specification under the stock runtime: %+v", r)
	}
}

// Devices of other vendors must be requested from containerd.
func TestAnotherVendorsDeviceInTheVariableIsRefused(t *testing.T) {
	h := simhost.New(t, simhost.Options{})
	h.Refused(t, simhost.Visible("example.test/nic=eth0"), "example.test/nic=eth0", "containerd")
}

// A server of the test's answers behind a daemon's socket.
func TestSocketsOfDaemonsAnswerOnlyWhereTheyAreConfigured(t *testing.T) {
	for _, configured := range []bool{false, true} {
		t.Run(fmt.Sprint("configured ", configured), func(t *testing.T) {
			text := ""
			if configured {
				text = "[container]\nsockets = [\"persistenced\", \"fabricmanager\"]\n"
			}
			h := simhost.New(t, simhost.Options{Config: text})
			for _, daemon := range []string{"nvidia-persistenced", "nvidia-fabricmanager"} {
				dir := filepath.Join(h.Driver.Root, "run", daemon)
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				l, err := net.Listen("unix", filepath.Join(dir, "socket"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { l.Close() })
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						fmt.Fprintf(c, "%s answers\n", daemon)
						c.Close()
					}
				}()
			}
			r := h.Run(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Args: []string{"/bin/sh", "-c",
				"for d in nvidia-persistenced nvidia-fabricmanager; do /test/hear /run/$d/socket /var/run/$d/socket; rm -f /run/$d/socket; chmod 777 /run/$d/socket; done 2>&1; true"}})
			want := 0
			if configured {
				want = 2
			}
			for _, daemon := range []string{"nvidia-persistenced", "nvidia-fabricmanager"} {
				if n := strings.Count(r.Output, daemon+" answers"); n != want {
					t.Errorf("%s answered %d times, want %d: %s%s", daemon, n, want, r.Output, r.Error)
				}
				if st, err := os.Stat(filepath.Join(h.Driver.Root, "run", daemon, "socket")); err != nil || st.Mode().Perm() == 0o777 {
					t.Errorf("the container changed the socket of %s: %v, %v", daemon, st, err)
				}
			}
		})
	}
}
