package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// cdiObject is a part of a CDI specification.
type cdiObject map[string]any

// cdiWrite writes a specification where ctr looks for such: it resolves CDI names
// itself and has no other directory. The kind is the test's own, so that a host's real
// specifications do not come into it.
func cdiWrite(t *testing.T, kind string, common cdiObject, devices map[string]cdiObject) {
	t.Helper()
	const dir = "/run/cdi"
	if _, err := os.Stat(dir); err != nil {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(dir) })
	}
	spec := cdiObject{"cdiVersion": "0.5.0", "kind": kind, "containerEdits": common}
	var list []cdiObject
	for name, edits := range devices {
		list = append(list, cdiObject{"name": name, "containerEdits": edits})
	}
	spec["devices"] = list
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, strings.ReplaceAll(kind, "/", "-")+".json")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(name) })
}

// cdiMarker is a program for hooks that leaves a line in a file for each run.
func cdiMarker(t *testing.T, name string) (program, marker string) {
	t.Helper()
	dir := t.TempDir()
	program, marker = filepath.Join(dir, name), filepath.Join(dir, "ran")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho \"$@\" >>"+marker+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, marker
}

// cdiNVIDIA writes what nvidia-ctk does for the GPUs of the simulated host.
func cdiNVIDIA(t *testing.T, d *sim.Driver, hook string) {
	t.Helper()
	node := func(name string) cdiObject {
		return cdiObject{"path": "/dev/" + name, "hostPath": d.DevRoot + "/dev/" + name}
	}
	lib := "/" + d.Layout.LibDir() + "/"
	var mounts []cdiObject
	for _, name := range []string{lib + "libcuda.so." + d.Version, lib + "libnvidia-ml.so." + d.Version, "/" + d.Layout.BinDir() + "/nvidia-smi"} {
		mounts = append(mounts, cdiObject{"hostPath": d.Root + name, "containerPath": name, "options": []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}})
	}
	devices := map[string]cdiObject{}
	for _, g := range d.GPUs {
		devices[fmt.Sprint(g.Index)] = cdiObject{"deviceNodes": []cdiObject{node(fmt.Sprintf("nvidia%d", g.Minor))}}
	}
	cdiWrite(t, "simulated.test/gpu", cdiObject{
		"env":         []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=" + lib},
		"deviceNodes": []cdiObject{node("nvidiactl"), node("nvidia-uvm"), node("nvidia-uvm-tools")},
		"mounts":      mounts,
		"hooks": []cdiObject{
			{"hookName": "createContainer", "path": hook, "args": []string{"nvidia-cdi-hook", "update-ldcache", "--folder", lib}, "env": []string{"NVIDIA_CTK_DEBUG=false"}},
			{"hookName": "createContainer", "path": hook, "args": []string{"nvidia-cdi-hook", "disable-device-node-modification"}},
		},
	}, devices)
}

// cdiForeign writes another vendor's specification: a directory, a variable and a hook.
func cdiForeign(t *testing.T) (marker string) {
	t.Helper()
	hook, marker := cdiMarker(t, "nic-hook")
	dir := filepath.Join(filepath.Dir(hook), "lib")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "vendor"), []byte("theirs\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cdiWrite(t, "example.test/nic", cdiObject{"env": []string{"NIC=theirs"}}, map[string]cdiObject{"eth0": {
		"deviceNodes": []cdiObject{{"path": "/dev/nic0", "hostPath": "/dev/full"}},
		"mounts":      []cdiObject{{"hostPath": dir, "containerPath": "/opt/nic", "options": []string{"ro", "rbind"}}},
		"hooks":       []cdiObject{{"hookName": "createRuntime", "path": hook, "args": []string{"nic-hook", "up"}}},
	}})
	return marker
}

// cdiProbe adds to the probe of a container what it has of the other vendor's.
func cdiProbe(d *sim.Driver, minors []int) []string {
	args := devProbeScript(devNodes(d, minors))
	args[2] += "\necho == theirs; cat /opt/nic/vendor; echo $NIC; echo >/dev/nic0\n" +
		"echo == twice; grep -o ' /[^ ]*\\(libcuda.so.1\\|libnvidia-ml.so.1\\|bin/nvidia-smi\\) ' /proc/mounts | grep -v ' /usr/local/nvidia/' | sort | uniq -d; true"
	return args
}

func cdiCheckTheirs(t *testing.T, r testenv.Result, marker string) {
	t.Helper()
	_, theirs, _ := strings.Cut(r.Stdout, "== theirs\n")
	theirs, twice, _ := strings.Cut(theirs, "== twice\n")
	// /dev/full is theirs to write to, and says that it is full.
	if theirs != "theirs\ntheirs\n" || !strings.Contains(r.Stderr, "No space left") {
		t.Errorf("of the other vendor's the container has %q; %q", theirs, r.Stderr)
	}
	if twice != "" {
		t.Errorf("mounted twice: %q", twice)
	}
	if data, err := os.ReadFile(marker); err != nil || string(data) != "up\n" {
		t.Errorf("the other vendor's hook ran: %q, %v", data, err)
	}
	os.Remove(marker)
}

// containerd's own CDI edits the specification; what NVIDIA's would do by hooks around
// the image is done here, once.
func TestWhatContainerdsCDIGaveIsTakenOver(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newDevHost(t, hostOptions{testenv: testenv.Options{Cgroup: version}})
		minors := devCheckMinors(t, h.Driver)
		hook, ran := cdiMarker(t, "nvidia-cdi-hook")
		cdiNVIDIA(t, h.Driver, hook)
		theirs := cdiForeign(t)
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
				o := testenv.RunOptions{Image: h.Image, Env: append(tc.env, "NVIDIA_DRIVER_CAPABILITIES=compute,utility"), Args: cdiProbe(h.Driver, minors)}
				for _, d := range tc.devices {
					o.Extra = append(o.Extra, "--device", "simulated.test/gpu="+d)
				}
				o.Extra = append(o.Extra, "--device", "example.test/nic=eth0")
				r := h.Run(t, o)
				if r.ExitCode != 0 {
					t.Fatalf("exit status %d: %s", r.ExitCode, r.Stderr)
				}
				got := devParse(r.Stdout)
				devCompare(t, got, devExpect(h.Driver, minors, tc.want))
				cdiCheckTheirs(t, r, theirs)
				if data, err := os.ReadFile(ran); err == nil {
					t.Errorf("NVIDIA's hooks ran: %s", data)
				}
			})
		}
		t.Run("the stock shim runs the hooks, so the test would notice", func(t *testing.T) {
			r := h.Run(t, testenv.RunOptions{Image: h.Image, Runtime: testenv.StockRuntime, Extra: []string{"--device", "simulated.test/gpu=1"}, Args: []string{"/bin/true"}})
			if _, err := os.Stat(ran); r.ExitCode != 0 || err != nil {
				t.Errorf("exit status %d: %s, %v", r.ExitCode, r.Stderr, err)
			}
			os.Remove(ran)
		})
		t.Run("the record says so", func(t *testing.T) {
			id := h.devSleep(t, testenv.RunOptions{Extra: []string{"--device", "simulated.test/gpu=1"}})
			if p := h.record(t, id); p.Grant != "taken over from CDI: "+h.Driver.GPUs[1].UUID || len(p.RemovedHooks) != 2 {
				t.Errorf("grant %q, hooks %q", p.Grant, p.RemovedHooks)
			}
		})
	})
}

func TestAnotherVendorsDeviceByItsNameInTheVariable(t *testing.T) {
	h := newDevHost(t, hostOptions{})
	minors := devCheckMinors(t, h.Driver)
	theirs := cdiForeign(t)
	run := func(value string) testenv.Result {
		return h.Run(t, testenv.RunOptions{Image: h.Image, Env: []string{"NVIDIA_VISIBLE_DEVICES=" + value}, Args: cdiProbe(h.Driver, minors)})
	}
	r := run("nvidia.com/gpu=1,example.test/nic=eth0")
	devCompare(t, devParse(r.Stdout), devExpect(h.Driver, minors, []int{1}))
	cdiCheckTheirs(t, r, theirs)
	t.Run("alone it needs no driver", func(t *testing.T) {
		r := run("example.test/nic=eth0")
		if got := devParse(r.Stdout); len(got.dev) != 0 {
			t.Errorf("nodes %q", got.dev)
		}
		cdiCheckTheirs(t, r, theirs)
	})
	t.Run("one that no specification has fails the create", func(t *testing.T) {
		if r := run("example.test/nic=eth9"); r.ExitCode == 0 || !strings.Contains(r.Stderr, `unknown CDI device "example.test/nic=eth9"`) {
			t.Errorf("exit status %d: %s", r.ExitCode, r.Stderr)
		}
	})
}

// A server of the test's answers behind a daemon's socket.
func TestSocketsOfDaemonsAnswerOnlyWhereTheyAreConfigured(t *testing.T) {
	for _, configured := range []bool{false, true} {
		t.Run(fmt.Sprint("configured ", configured), func(t *testing.T) {
			text := ""
			if configured {
				text = "[container]\nsockets = [\"persistenced\", \"fabricmanager\"]\n"
			}
			h := newDevHost(t, hostOptions{config: text})
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
			r := h.Run(t, testenv.RunOptions{Image: h.Image, Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Args: []string{"/bin/sh", "-c",
				"for d in nvidia-persistenced nvidia-fabricmanager; do /test/hear /run/$d/socket /var/run/$d/socket; rm -f /run/$d/socket; chmod 777 /run/$d/socket; done 2>&1; true"}})
			want := 0
			if configured {
				want = 2
			}
			for _, daemon := range []string{"nvidia-persistenced", "nvidia-fabricmanager"} {
				if n := strings.Count(r.Stdout, daemon+" answers"); n != want {
					t.Errorf("%s answered %d times, want %d: %s%s", daemon, n, want, r.Stdout, r.Stderr)
				}
				if st, err := os.Stat(filepath.Join(h.Driver.Root, "run", daemon, "socket")); err != nil || st.Mode().Perm() == 0o777 {
					t.Errorf("the container changed the socket of %s: %v, %v", daemon, st, err)
				}
			}
		})
	}
}
