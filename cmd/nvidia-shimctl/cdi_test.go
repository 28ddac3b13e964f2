package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func TestCDISpecificationOfTheHost(t *testing.T) {
	d := simulate(t)
	if err := d.Reconfigure(t.Context(), []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cdi", "nvidia.yaml")
	fine(t, "--config", d.ConfigPath, "cdi", "--output", file)
	text, err := os.ReadFile(file)
	if err != nil || string(text) != fine(t, "--config", d.ConfigPath, "cdi") {
		t.Errorf("%s, %v", text, err)
	}
	// The CDI project's own reader accepts it.
	cache, err := cdi.NewCache(cdi.WithSpecDirs(filepath.Dir(file)), cdi.WithAutoRefresh(false))
	if err != nil || len(cache.GetErrors()) > 0 {
		t.Fatal(err, cache.GetErrors())
	}
	nodes := map[string][]string{ // of a device, on the host, without the common ones
		"0": {"nvidia" + minor(d, 0)}, d.GPUs[0].UUID: {"nvidia" + minor(d, 0)}, "2": {"nvidia" + minor(d, 2)}, d.GPUs[2].UUID: {"nvidia" + minor(d, 2)},
	}
	var spec specs.Spec
	decode(t, fine(t, "--config", d.ConfigPath, "--json", "cdi"), &spec)
	got := map[string][]string{}
	for _, dev := range spec.Devices {
		for _, n := range dev.ContainerEdits.DeviceNodes {
			if !strings.HasPrefix(n.HostPath, d.DevRoot+"/dev/") || n.Permissions != "rw" {
				t.Errorf("%+v", n)
			}
			got[dev.Name] = append(got[dev.Name], filepath.Base(n.Path))
		}
	}
	for name, want := range nodes {
		if !slices.Equal(got[name], want) {
			t.Errorf("device %s has %q, want %q", name, got[name], want)
		}
	}
	uuid := d.MIG[0].UUID
	if mig := got["1:0"]; len(mig) != 3 || mig[0] != "nvidia"+minor(d, 1) || !slices.Equal(mig, got[uuid]) || len(got["all"]) != 5 || len(got) != 7 {
		t.Errorf("%q", got)
	}
	for _, n := range spec.ContainerEdits.DeviceNodes {
		if !slices.Contains([]string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}, n.Path) {
			t.Errorf("every device has %s", n.Path)
		}
	}
	var places []string
	for _, m := range spec.ContainerEdits.Mounts {
		if info, err := os.Lstat(m.HostPath); err != nil || !info.Mode().IsRegular() || strings.HasPrefix(m.HostPath, d.StateDir) {
			t.Errorf("%+v: %v", m, err)
		}
		places = append(places, m.ContainerPath)
	}
	for _, p := range []string{"/usr/lib64/libcuda.so.1", "/usr/bin/nvidia-smi", "/usr/lib64/libnvidia-ml.so.1"} {
		if !slices.Contains(places, p) {
			t.Errorf("no %s in %q", p, places)
		}
	}
	if len(spec.ContainerEdits.Hooks) > 0 {
		t.Error("a runtime would execute something")
	}
}

// A container's node has the host's owner, group and mode, for every user of a container.
func TestCDINodesKeepTheirOwners(t *testing.T) {
	d := simulate(t)
	gpu := filepath.Join(d.DevRoot, "dev/nvidia"+minor(d, 0))
	if err := errors.Join(os.Chown(gpu, 0, 44), os.Chmod(gpu, 0o660)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cdi", "nvidia.yaml")
	fine(t, "--config", d.ConfigPath, "cdi", "--output", file)
	cache, err := cdi.NewCache(cdi.WithSpecDirs(filepath.Dir(file)), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	spec := &oci.Spec{Process: &oci.Process{User: oci.User{UID: 1000, GID: 1000}}, Linux: &oci.Linux{}}
	if _, err := cache.InjectDevices(spec, "nvidia.com/gpu=0"); err != nil {
		t.Fatal(err)
	}
	for _, n := range spec.Linux.Devices {
		info, err := os.Stat(filepath.Join(d.DevRoot, n.Path))
		if err != nil {
			t.Fatal(err)
		}
		st := info.Sys().(*syscall.Stat_t)
		if n.UID == nil || n.GID == nil || n.FileMode == nil || *n.UID != st.Uid || *n.GID != st.Gid || n.FileMode.Perm() != info.Mode().Perm() {
			t.Errorf("%s: uid %v, gid %v, mode %v", n.Path, n.UID, n.GID, n.FileMode)
		}
	}
	if !slices.Contains(spec.Process.User.AdditionalGids, 44) || len(spec.Linux.Devices) < 3 {
		t.Errorf("groups %v, nodes %v", spec.Process.User.AdditionalGids, spec.Linux.Devices)
	}
}

// A second file with our names would leave container engines without any.
func TestInstallRefusesASecondCDIFile(t *testing.T) {
	d := simulate(t)
	root, daemon, from := installTree(t, "v2.4.2", "")
	dir := filepath.Join(t.TempDir(), "cdi")
	useCDIFile(t, filepath.Join(dir, "nvidia.yaml"))
	copied := filepath.Join(dir, ".nvidia.yaml")
	write(t, copied, "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices: [{name: all, containerEdits: {env: [A=b]}}]\n")
	status, _, errs := ctl(t, "--config", d.ConfigPath, "install", "--containerd-config", filepath.Join(root, "config.toml"), "--bin-dir", filepath.Join(root, "bin"),
		"--from", from, "--containerd", daemon, "--cdi")
	if _, err := os.Stat(cdiFile); status != 1 || !strings.Contains(errs, "remove "+copied) || err == nil {
		t.Errorf("status %d, %s, %v", status, errs, err)
	}
}

func minor(d *sim.Driver, gpu int) string { return string(rune('0' + d.GPUs[gpu].Minor)) }

func TestCDIFileOfAnotherProgramStays(t *testing.T) {
	d := simulate(t)
	dir := t.TempDir()
	theirs, link := filepath.Join(dir, "nvidia.yaml"), filepath.Join(dir, "link.yaml")
	if err := os.WriteFile(theirs, []byte("cdiVersion: 0.5.0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(theirs, link); err != nil {
		t.Fatal(err)
	}
	stays := func(code int, args ...string) {
		t.Helper()
		got, _, errs := ctl(t, append([]string{"--config", d.ConfigPath}, args...)...)
		if text, _ := os.ReadFile(theirs); got != code || string(text) != "cdiVersion: 0.5.0\n" {
			t.Errorf("%q: status %d, %s, %s", args, got, errs, text)
		}
	}
	stays(1, "cdi", "--output", theirs)
	stays(1, "cdi", "--output", link)
	useCDIFile(t, theirs)
	stays(0, "prepare", "--cdi")
}

// useCDIFile makes name the path of the specification, and keeps the installation record beside it.
func useCDIFile(t *testing.T, name string) {
	file, record := cdiFile, runtimeclass.RecordPath
	cdiFile, runtimeclass.RecordPath = name, filepath.Join(filepath.Dir(name), "record/installed.json")
	t.Cleanup(func() { cdiFile, runtimeclass.RecordPath = file, record })
}

// Prepare rewrites the file that install wrote, and no other.
func TestCDIFileIsMadeAgain(t *testing.T) {
	d := simulate(t)
	file := filepath.Join(t.TempDir(), "cdi/nvidia.yaml")
	useCDIFile(t, file)
	read := func() string { text, _ := os.ReadFile(file); return string(text) }
	prepare := []string{"--config", d.ConfigPath, "prepare", "--cdi"}
	if fine(t, prepare...); read() != "" {
		t.Error("a file was made that was not there")
	}
	fine(t, "--config", d.ConfigPath, "cdi", "--output", file)
	before := read()
	testtree.Check(t, d.Reconfigure(t.Context(), []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}}))
	fine(t, "--config", d.ConfigPath, "prepare")
	if fine(t, append(prepare, "--dry-run")...); read() != before {
		t.Error("changed without --cdi, or in a dry run")
	}
	if fine(t, prepare...); !strings.Contains(read(), d.MIG[0].UUID) {
		t.Errorf("after a change of MIG: %s", read())
	}
	testtree.Check(t, d.Upgrade("999.1.2"))
	if fine(t, prepare...); !strings.Contains(read(), "libcuda.so.999.1.2") || strings.Contains(read(), sim.DefaultVersion) {
		t.Errorf("after an upgrade: %s", read())
	}
	before = read()
	testtree.Check(t, os.RemoveAll(filepath.Join(d.ProcRoot, "driver")))
	testtree.Check(t, os.RemoveAll(filepath.Join(d.SysRoot, "bus")))
	if fine(t, prepare...); read() != before {
		t.Error("changed without a driver")
	}
}

// A dry run shows what would be written and removed on the host itself; integration/systemd tests
// the real commands.
func TestCDIFileOfInstall(t *testing.T) {
	d := simulate(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "nvidia.yaml")
	useCDIFile(t, file)
	_, daemon, from := installTree(t, "v2.4.2", "")
	place := []string{"--dry-run", "--target", "containerd", "--containerd-config", filepath.Join(dir, "config.toml"), "--bin-dir", filepath.Join(dir, "bin")}
	install := append([]string{"--config", d.ConfigPath, "install", "--from", from, "--cdi", "--containerd", daemon}, place...)
	uninstall := append([]string{"--config", d.ConfigPath, "uninstall"}, place...)
	dryRun := func(args []string, want bool, line string) {
		t.Helper()
		if status, out, errs := ctl(t, args...); status != 0 || strings.Contains(out, line+file+"\n") != want {
			t.Errorf("%q: status %d, %s%s", args, status, out, errs)
		}
	}
	dryRun(install, true, "would write ")
	// Hundreds of lines would hide the notes.
	if out := fine(t, install...); strings.Contains(out, "hostPath") {
		t.Errorf("the specification is shown:\n%s", out)
	}
	dryRun(uninstall, false, "would remove ")
	fine(t, "--config", d.ConfigPath, "cdi", "--output", file)
	dryRun(install, false, "would write ")
	dryRun(uninstall, false, "would remove ")
	write(t, file, "kind: nvidia.com/gpu\n")
	dryRun(uninstall, false, "would remove ")
	if status, _, errs := ctl(t, install...); status != 1 || !strings.Contains(errs, "was not written by this program") {
		t.Errorf("over the file of another program: %d %s", status, errs)
	}
	if status, _, errs := ctl(t, "install", "--from", from, "--cdi", "--target", "containerd", "--root", dir); status != 2 || !strings.Contains(errs, "--cdi cannot be combined with --root") {
		t.Errorf("a tree: %d %s", status, errs)
	}
}

// Uninstalling the last registration that asked for the file removes it, if the installation
// created it and it was not edited since.
func TestCDIFileOfTwoInstallations(t *testing.T) {
	d := simulate(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "cdi/nvidia.yaml")
	useCDIFile(t, file)
	_, daemon, from := installTree(t, "v2.4.2", "")
	ctlFor := func(config, command string, args ...string) {
		fine(t, append([]string{"--config", d.ConfigPath, command, "--containerd-config", filepath.Join(dir, config), "--bin-dir", filepath.Join(dir, "bin")}, args...)...)
	}
	exists := func(want bool, when string) {
		t.Helper()
		if _, err := os.Stat(file); (err == nil) != want {
			t.Errorf("%s: %v", when, err)
		}
	}
	ctlFor("one.toml", "install", "--from", from, "--containerd", daemon, "--cdi")
	exists(true, "installed")
	ctlFor("two.toml", "install", "--from", from, "--containerd", daemon, "--cdi")
	ctlFor("one.toml", "uninstall")
	exists(true, "another daemon needs it")
	testtree.Check(t, d.Upgrade("999.1.2"))
	fine(t, "--config", d.ConfigPath, "prepare", "--cdi")
	contains(t, read(t, file), "libcuda.so.999.1.2")
	ctlFor("two.toml", "uninstall")
	exists(false, "uninstalled")

	fine(t, "--config", d.ConfigPath, "cdi", "--output", file)
	ctlFor("one.toml", "install", "--from", from, "--containerd", daemon, "--cdi")
	ctlFor("one.toml", "uninstall")
	exists(true, "it was there before")

	testtree.Check(t, os.Remove(file))
	ctlFor("one.toml", "install", "--from", from, "--containerd", daemon, "--cdi")
	edited := read(t, file) + "# mine\n"
	write(t, file, edited)
	testtree.Check(t, d.Upgrade("999.1.3"))
	fine(t, "--config", d.ConfigPath, "prepare", "--cdi")
	ctlFor("one.toml", "uninstall")
	if got := read(t, file); got != edited {
		t.Errorf("the edited file has\n%s", got)
	}
}
