package mask

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/record"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestMain(m *testing.M) { simhost.Main(m) }

// listing prints every file and directory below the mask with its content.
const listing = `cd ` + simhost.Mask + ` && find . | sort && for f in $(find . -type f | sort); do echo "== $f"; cat $f; done`

// The mask shows the GPUs that were granted, the driver's version, and parameters
// that keep NVIDIA's libraries from making nodes; nothing else.
func TestT55T57TheMaskShowsExactlyWhatWasGranted(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 8}})
	read := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(h.Driver.ProcRoot, "driver/nvidia", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	params := read("params")
	if !strings.Contains(params, "ModifyDeviceFiles: 1\n") {
		t.Fatal("the host's parameters say nothing that the mask would have to change")
	}
	for _, tc := range []struct {
		name, value string
		gpus        []int
	}{
		{"one GPU", "3", []int{3}},
		{"two GPUs", "1,6", []int{1, 6}},
		{"no GPU", "none", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			files := map[string]string{
				"./nvidia/version": read("version"),
				"./nvidia/params":  strings.Replace(params, "ModifyDeviceFiles: 1\n", "ModifyDeviceFiles: 0\n", 1),
			}
			names := []string{".", "./nvidia", "./nvidia/version", "./nvidia/params"}
			if len(tc.gpus) > 0 {
				names = append(names, "./nvidia/gpus")
			}
			for _, i := range tc.gpus {
				gpu := "gpus/" + h.Driver.GPUs[i].BusID
				names = append(names, "./nvidia/"+gpu)
				for _, name := range []string{gpu + "/information", gpu + "/power"} {
					names = append(names, "./nvidia/"+name)
					files["./nvidia/"+name] = read(name)
				}
			}
			slices.Sort(names)
			var order []string
			for name := range files {
				order = append(order, name)
			}
			slices.Sort(order)
			want := strings.Join(names, "\n") + "\n"
			for _, name := range order {
				want += "== " + name + "\n" + files[name]
			}
			got := h.MustRun(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=" + tc.value}, Args: []string{"/bin/sh", "-c", "LC_ALL=C; " + listing}})
			if sorted(got) != sorted(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// sorted sorts lines, because their order depends on the image's sort.
func sorted(s string) string {
	list, files, _ := strings.Cut(s, "== ")
	lines := strings.Split(strings.TrimSpace(list), "\n")
	slices.Sort(lines)
	parts := strings.Split(files, "== ")
	slices.Sort(parts)
	return strings.Join(lines, "\n") + "\n" + strings.Join(parts, "== ")
}

// Container root cannot change the mask, nor take it off, nor make it writable.
func TestT56TheMaskCannotBeChangedByContainerRoot(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}})
	bus := h.Driver.GPUs[1].BusID
	script := strings.Join([]string{
		"try() { if ( eval \"$1\" ) 2>/tmp/err; then echo \"worked: $1\"; elif ! grep -q -e 'Read-only file system' -e 'not permitted' -e 'ermission denied' /tmp/err; then echo \"$1: $(cat /tmp/err)\"; fi; }",
		"cd " + simhost.Mask,
		"for f in nvidia/params nvidia/version nvidia/gpus/" + bus + "/information; do try \"echo 'ModifyDeviceFiles: 1' >$f\"; try \"rm $f\"; try \"chmod 666 $f\"; try \"mv $f x\"; done",
		"try 'mkdir nvidia/gpus/0000:00:00.0'; try 'touch new'; try 'chmod 777 .'; try 'ln -s / x'",
		"cd /; try 'mount -o remount,rw " + simhost.Mask + "'",
		"[ -n \"$MAY_MOUNT\" ] || { try 'umount " + simhost.Mask + "'; try 'mount -t tmpfs x " + simhost.Mask + "'; }",
		"grep ModifyDeviceFiles " + simhost.Mask + "/nvidia/params",
		"grep ' " + simhost.Mask + " ' /proc/self/mountinfo",
	}, "\n")
	for _, tc := range []struct {
		name string
		o    testenv.RunOptions
	}{
		{"root", testenv.RunOptions{}},
		{"T29 root of a read-only root file system", testenv.RunOptions{ReadOnly: true, Mounts: []string{"type=tmpfs,src=tmpfs,dst=/tmp,options=rw"}}},
		{"T29 root of a user namespace", testenv.RunOptions{Extra: simhost.UserNamespace}},
		{"T29 root of a user namespace with a read-only root file system", testenv.RunOptions{ReadOnly: true, Mounts: []string{"type=tmpfs,src=tmpfs,dst=/tmp,options=rw"}, Extra: simhost.UserNamespace}},
		// It owns its mount namespace and can take every mount off; what is below the
		// mask it still cannot write.
		{"root of a user namespace with CAP_SYS_ADMIN", testenv.RunOptions{Env: []string{"MAY_MOUNT=1"}, Extra: append([]string{"--cap-add", "CAP_SYS_ADMIN"}, simhost.UserNamespace...)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.o.Env, tc.o.Args = append(tc.o.Env, "NVIDIA_VISIBLE_DEVICES=1"), []string{"/bin/sh", "-c", script}
			out := h.MustRun(t, tc.o)
			rest, ok := strings.CutPrefix(out, "ModifyDeviceFiles: 0\n")
			if !ok {
				t.Fatalf("the mask is not as it was, or could be changed:\n%s", out)
			}
			f := strings.Fields(rest)
			if len(f) < 10 {
				t.Fatalf("one mount expected: %q", rest)
			}
			for _, option := range []string{"nosuid", "nodev", "noexec"} {
				if !slices.Contains(strings.Split(f[5], ","), option) {
					t.Errorf("the mask is not mounted %s: %s", option, rest)
				}
			}
			if super := strings.Split(f[len(f)-1], ","); f[len(f)-3] != "tmpfs" || !slices.Contains(super, "ro") {
				t.Errorf("the mask is no read-only tmpfs: %s", rest)
			}
		})
	}
}

// The mask is in its container's mount namespace and nowhere else.
func TestTheMaskIsSeenByItsContainerOnly(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}, Env: testenv.Options{Cgroup: version}})
		onHost := simhost.Names(t, simhost.Mask)
		list := []string{"/bin/ls", simhost.Mask}
		plainBefore := h.MustRun(t, testenv.RunOptions{Args: list})
		first := h.Start(t, simhost.Visible("0"))
		second := h.Start(t, simhost.Visible("2"))
		plain := h.Start(t, testenv.RunOptions{})

		for id, gpu := range map[string]int{first: 0, second: 2} {
			got := h.Exec(t, id, "/bin/ls", simhost.Mask+"/nvidia/gpus").Output
			if want := h.Driver.GPUs[gpu].BusID + "\n"; got != want {
				t.Errorf("container with GPU %d: gpus has %q, want %q", gpu, got, want)
			}
			if plan := h.Record(t, id); !plan.Proc.Masked || !slices.Equal(plan.Proc.GPUs, []string{h.Driver.GPUs[gpu].BusID}) {
				t.Errorf("the record says of the mask: %+v", plan.Proc)
			}
		}
		if got := h.Exec(t, plain, list...).Output; got != plainBefore {
			t.Errorf("a container without a GPU sees %q in %s, before there was a mask %q", got, simhost.Mask, plainBefore)
		}
		for _, table := range []string{"/proc/self/mountinfo", fmt.Sprintf("/proc/%d/mountinfo", h.PID())} {
			data, err := os.ReadFile(table)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(data), " "+simhost.Mask+" ") {
				t.Errorf("the mask is mounted in %s", table)
			}
		}
		if got := simhost.Names(t, simhost.Mask); !slices.Equal(got, onHost) {
			t.Errorf("%s of the host has %q, before %q", simhost.Mask, got, onHost)
		}
	})
}

// A privileged container can take any mask off, so it gets none; the GPU works.
func TestAPrivilegedContainerHasNoMask(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}})
	id := h.Start(t, testenv.RunOptions{Privileged: true, Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}})
	if out := h.Exec(t, id, "/bin/sh", "-c", "grep -c ' "+simhost.Mask+" ' /proc/self/mountinfo; ls "+simhost.Mask).Output; !strings.HasPrefix(out, "0\n") || strings.Contains(out, "nvidia") {
		t.Errorf("a privileged container has a mask: %q", out)
	}
	if out := h.Exec(t, id, "/test/opendev", "/dev/nvidia0", "/dev/nvidia2").Output; out != "/dev/nvidia0 ENXIO\n/dev/nvidia2 ENOENT\n" {
		t.Errorf("device nodes: %q", out)
	}
	if plan := h.Record(t, id); plan.Proc.Masked || len(plan.Proc.GPUs) != 0 {
		t.Errorf("the record says of the mask: %+v", plan.Proc)
	}
}

// The record says what was asked, granted and injected, and why; the log has one
// line for it.
func TestARecordAndOneLogLineTellWhatAContainerGot(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}})
	gpu := h.Driver.GPUs[1]
	id := h.Start(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=1, " + gpu.UUID}})
	plain := h.Start(t, simhost.Visible("void"))

	plan := h.Record(t, id)
	m := h.Driver.Majors
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"GPU", plan.GPU, true}, {"error", plan.Error, ""}, {"driver", plan.DriverVersion, h.Driver.Version},
		{"reason", plan.Reason, `NVIDIA_VISIBLE_DEVICES="1, ` + gpu.UUID + `"`},
		{"grant", plan.Grant, "outside Kubernetes the environment grants"},
		{"asked", plan.Asked, []string{"1", gpu.UUID}},
		{"GPUs", plan.GPUs, []record.GPU{{Index: 1, Minor: 0, UUID: gpu.UUID, PCI: gpu.BusID}}},
		{"capabilities", plan.Capabilities, []string{"compute", "utility"}},
		{"devices", plan.Devices, []record.Device{
			{Path: "/dev/nvidiactl", Major: m.GPU, Minor: 255}, {Path: "/dev/nvidia0", Major: m.GPU, Minor: 0},
			{Path: "/dev/nvidia-uvm", Major: m.UVM, Minor: 0}, {Path: "/dev/nvidia-uvm-tools", Major: m.UVM, Minor: 1},
		}},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.what, c.got, c.want)
		}
	}
	if !slices.Contains(plan.Libraries, "libcuda.so."+h.Driver.Version) || slices.Contains(plan.Libraries, "libnvcuvid.so."+h.Driver.Version) {
		t.Errorf("libraries %q", plan.Libraries)
	}
	if !slices.Contains(plan.Binaries, "nvidia-smi") || len(plan.Mounts) == 0 || plan.Mounts[0].Destination != "/usr/local/nvidia" {
		t.Errorf("binaries %q, mounts %+v", plan.Binaries, plan.Mounts)
	}
	if plan.Linker.LibC != "glibc" || plan.Linker.Directory == "" {
		t.Errorf("linker %+v", plan.Linker)
	}
	if info, err := os.Stat(filepath.Join(h.BundleDir(id), record.Name)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the record's file: %v %v", info, err)
	}

	lines := h.LogLines(id, "info")
	if len(lines) != 1 {
		t.Fatalf("%d info lines about the container: %q", len(lines), lines)
	}
	simhost.Want(t, lines[0], gpu.UUID, "compute,utility", h.Driver.Version, "outside Kubernetes the environment grants", "runtime=io.containerd.nvidia.v2")
	for _, level := range []string{"debug", "info", "warning", "error"} {
		if lines := h.LogLines(plain, level); len(lines) != 0 {
			t.Errorf("lines about a container without a GPU: %q", lines)
		}
	}
	if warnings := append(h.LogLines(id, "warning"), h.LogLines(id, "error")...); len(warnings) != 0 {
		t.Errorf("warnings about a container that has no problem: %q", warnings)
	}
	if _, err := os.Stat(filepath.Join(h.BundleDir(plain), record.Name)); !os.IsNotExist(err) {
		t.Errorf("a container without a GPU has a record: %v", err)
	}
	h.Remove(t, id)
	if _, err := os.Stat(h.BundleDir(id)); !os.IsNotExist(err) {
		t.Errorf("the record outlives its bundle: %v", err)
	}
}
