package prepare

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// fixtureModprobe compiles the program of testdata once.
var fixtureModprobe = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "modprobe")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "modprobe")
	cmd := exec.Command("gcc", "-O1", "-static", "-o", out, "testdata/modprobe.c")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
})

// unloaded is a host with a GPU whose driver is installed and not loaded. Procfs and sysfs are in
// the driver root, where its modprobe finds them.
func unloaded(t *testing.T) (host, Options) {
	t.Helper()
	program, err := fixtureModprobe()
	if err != nil {
		t.Fatalf("a program for the fixture: %v (gcc and libc6-dev are needed)", err)
	}
	h := newHost(t)
	h.mkdir("root/later/nvidia/proc")
	h.mkdir("root/proc")
	for from, to := range map[string]string{
		"proc/driver": "root/later/nvidia/proc/driver", "sys": "root/sys",
	} {
		h.Check(os.Rename(h.path(from), h.path(to)))
	}
	h.mkdir("root/later/nvidia_modeset/sys")
	h.Check(os.Rename(h.path("root/sys/module"), h.path("root/later/nvidia_modeset/sys/module")))
	h.Write("root/proc/devices", "Character devices:\n  1 mem\n")
	h.Write("root/later/nvidia/proc/devices", "Character devices:\n195 nvidia\n")
	h.Write("root/later/nvidia_uvm/proc/devices", devices)
	h.Write("root/sbin/modprobe", string(program))
	o := h.options()
	o.Host.ProcRoot, o.Host.SysRoot = h.path("root/proc"), h.path("root/sys")
	return h, o
}

func (h host) log() []string {
	data, _ := os.ReadFile(h.path("root/log"))
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

func TestModulesAreLoadedInTheDriverRootIfToldTo(t *testing.T) {
	h, o := unloaded(t)
	t.Setenv("MODPROBE_OPTIONS", "--evil")
	r := h.run(o)
	if r.Ready || !strings.Contains(states(r), "nvidia missing") || len(r.Nodes) != 0 || h.log()[0] != "" {
		t.Errorf("not told to: ready %v, %q\n%s", r.Ready, h.log(), states(r))
	}
	for _, m := range r.Modules {
		if !strings.Contains(m.Fix, "--load-modules") {
			t.Errorf("without a fix: %+v", m)
		}
	}
	o.LoadModules, o.DryRun = true, true
	if r := h.run(o); !r.Ready || strings.Count(states(r), Made) != 3 || h.log()[0] != "" || len(r.Notes) != 1 {
		t.Errorf("a dry run: ready %v, %q\n%s", r.Ready, h.log(), states(r))
	}
	o.DryRun = false
	if r := h.run(o); !r.Ready || strings.Count(states(r), Made) != 8 {
		t.Errorf("ready %v\n%s", r.Ready, states(r))
	}
	want := []string{"/sbin/modprobe nvidia 2 arguments 0 variables", "/sbin/modprobe nvidia_uvm 2 arguments 0 variables", "/sbin/modprobe nvidia_modeset 2 arguments 0 variables"}
	if got := h.log(); !slices.Equal(got, want) {
		t.Errorf("modprobe was called as %q, want %q", got, want)
	}
	if got := h.nodes(); !slices.Equal(got, usual) {
		t.Errorf("got %q", got)
	}
	if r := h.run(o); !r.Ready || strings.Contains(states(r), Made) || len(h.log()) != 3 {
		t.Errorf("a second run: %q\n%s", h.log(), states(r))
	}
}

func TestAModuleThatCannotBeLoaded(t *testing.T) {
	for _, c := range []struct {
		name  string
		have  func(h host)
		ready bool
		says  string
	}{
		{"nvidia", func(h host) { h.Write("root/later/nvidia.fails", "") }, false, "No such device"},
		{"nvidia_modeset, which containers can do without", func(h host) { h.Write("root/later/nvidia_modeset.fails", "") }, true, "No such device"},
		{"modprobe succeeds and nothing is loaded", func(h host) { os.RemoveAll(h.path("root/later/nvidia")) }, false, "the module is not loaded"},
		{"a world-writable modprobe", func(h host) { os.Chmod(h.path("root/sbin/modprobe"), 0o757) }, false, "is writable by users other than root"},
		{"a link out of the driver root", func(h host) {
			os.Rename(h.path("root/sbin/modprobe"), h.path("modprobe"))
			os.Symlink("../../modprobe", h.path("root/sbin/modprobe"))
		}, false, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, o := unloaded(t)
			o.LoadModules = true
			c.have(h)
			r := h.run(o)
			said := ""
			for _, m := range r.Modules {
				said += m.Message + "\n"
			}
			if r.Ready != c.ready || !strings.Contains(said, c.says) {
				t.Errorf("ready %v, no %q in %q", r.Ready, c.says, said)
			}
			if c.says != "No such device" && c.says != "the module is not loaded" && h.log()[0] != "" {
				t.Errorf("it was executed: %q", h.log())
			}
		})
	}
}
