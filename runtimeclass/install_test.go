package runtimeclass

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// options returns the options to install everything into a tree with containerd.
func options(t *testing.T) Options {
	t.Helper()
	from := t.TempDir()
	for _, name := range Programs {
		write(t, filepath.Join(from, name), "a program\n")
	}
	o := containerdOptions(Registration{})
	o.Programs, o.PrepareUnit = from, true
	o.ShimConfig, o.ShimSettings, o.WriteShimConfig = "/etc/nvidia-shim/config.toml", "[log]\nlevel = 'debug'\n", true
	return o
}

// changedFiles returns the files of all kinds that a plan changes.
func changedFiles(p Plan) (out []string) {
	for _, kind := range []hosttree.Kind{hosttree.Program, hosttree.Original, hosttree.DaemonConfig, hosttree.OtherFile, hosttree.Link, hosttree.Record} {
		out = append(out, p.changing(kind)...)
	}
	return out
}

// Without the unit, no program regenerates the CDI specification.
func TestInstallSaysWhatUpdatesTheCDISpecification(t *testing.T) {
	h := containerdTree(t, "v2-1.7.toml", "", v1735)
	for _, step := range []struct{ cdi, unit, want bool }{{true, false, true}, {false, false, false}, {true, true, false}, {true, false, false}} {
		o := options(t)
		o.PrepareUnit = step.unit
		if step.cdi {
			o.CDI = []hosttree.Change{{Kind: hosttree.Generated, Path: "/etc/cdi/nvidia.yaml", After: []byte("cdiVersion: 0.5.0\n")}}
		}
		plan := applied(t)(Install(h, o))
		if got := strings.Contains(strings.Join(plan.Notes, "\n"), "/etc/cdi/nvidia.yaml is not updated"); got != step.want {
			t.Errorf("%+v: %q", step, plan.Notes)
		}
	}
}

// A unit in /etc would shadow the package's unit.
func TestThePackagesUnitIsEnabled(t *testing.T) {
	h := containerdTree(t, "v2-1.7.toml", "", v1735)
	o := options(t)
	o.Registration.BinDir = PackageBinDir
	write(t, h.Real(packagedUnit), "[Unit]\n")
	before := testtree.Contents(t, h.Root)
	applied(t)(Install(h, o))
	if to, err := os.Readlink(h.Real(UnitLink)); err != nil || to != packagedUnit || h.Exists(UnitPath) {
		t.Errorf("enabled: %q, %v; a unit in /etc: %v", to, err, h.Exists(UnitPath))
	}
	removal := applied(t)(Uninstall(h, o))
	_, err := removal.RemovePrograms(procfs.FS(t.TempDir()))
	check(t, err)
	if after := testtree.Contents(t, h.Root); !reflect.DeepEqual(after, before) {
		t.Errorf("after uninstall: %v, before: %v", after, before)
	}
}

func TestInstallAndUninstallEverything(t *testing.T) {
	h := containerdTree(t, "v2-1.7.toml", "", v1735)
	before := testtree.Contents(t, h.Root)
	o := options(t)
	plan, err := Install(h, o)
	check(t, err)
	want := []string{
		"/usr/local/bin/" + version.Shim, "/usr/local/bin/" + version.Ctl, "/usr/local/bin/" + version.NVML, testConfig + hosttree.BackupSuffix, testConfig,
		cdiPath, cdiService, UnitPath, "/etc/nvidia-shim/config.toml", UnitLink, "/etc/nvidia-shim/installed.json",
	}
	if got := changedFiles(plan); !reflect.DeepEqual(got, want) || plan.Handler != "nvidia" || plan.Restart.String() != "systemctl restart containerd" {
		t.Errorf("changes %v, handler %q, %s", got, plan.Handler, plan.Restart)
	}
	applied(t)(plan, err)
	if to, err := os.Readlink(h.Real(UnitLink)); err != nil || to != UnitPath {
		t.Errorf("the unit is not enabled: %q %v", to, err)
	}
	// A program whose mode was changed is installed again, and nothing else.
	if again, err := Install(h, o); err != nil || len(changedFiles(again)) > 0 {
		t.Errorf("a second installation: %v, %v", changedFiles(again), err)
	}
	shim := filepath.Join(h.Root, want[0])
	check(t, os.Chmod(shim, 0o644))
	again, err := Install(h, o)
	if err != nil || !reflect.DeepEqual(changedFiles(again), want[:1]) {
		t.Errorf("a program that cannot be executed: %v, %v", changedFiles(again), err)
	}
	applied(t)(again, err)
	if st, err := os.Stat(shim); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v %v", st.Mode(), err)
	}

	removal := applied(t)(Uninstall(h, o))
	// A running shim keeps its file, by whatever name; one of a user or a container does not.
	r := testtree.Root{TB: t, Dir: t.TempDir()}
	check(t, os.Link(shim, filepath.Join(r.Dir, version.Shim)))
	r.Process("proc", 7, version.Shim, nil)
	if stay, err := removal.RemovePrograms(procfs.FS(r.Dir + "/proc")); err != nil || len(stay) != 3 {
		t.Errorf("stay %v, %v", stay, err)
	}
	r.ReplaceLink("proc/7/ns/mnt", "mnt:[2]")
	r.ReplaceLink("proc/7/exe", shim)
	// A second removal finds them in the record.
	if stay, err := applied(t)(Uninstall(h, o)).RemovePrograms(procfs.FS(r.Dir + "/proc")); err != nil || len(stay) != 0 {
		t.Errorf("stay %v, %v", stay, err)
	}
	if now := testtree.Contents(t, h.Root); !reflect.DeepEqual(now, before) {
		t.Errorf("not as before: %v", now)
	}
	if plan, err = Uninstall(h, o); err != nil || len(changedFiles(plan)) > 0 || !strings.Contains(strings.Join(plan.Notes, ""), "install registered nothing") {
		t.Errorf("a second removal: %v %v", plan, err)
	}
}

func TestInstallRefuses(t *testing.T) {
	for want, change := range map[string]func(o *Options, h Host){
		"cannot be in a unit":             func(o *Options, _ Host) { o.Registration.BinDir = "/opt/my programs" },
		"was not written by this program": func(_ *Options, h Host) { write(t, h.Real(UnitPath), "[Unit]\n") },
		"nvidia-shim-cdi.path was not":    func(_ *Options, h Host) { write(t, h.Real(cdiPath), "[Path]\n") },
		"exists and is not overwritten":   func(o *Options, h Host) { write(t, h.Real(o.ShimConfig), "[log]\nlevel = 'info'\n") },
	} {
		h, o := containerdTree(t, "none", "", v242), options(t)
		change(&o, h)
		before := testtree.Contents(t, h.Root)
		if _, err := Install(h, o); err == nil || !strings.Contains(err.Error(), want) || !reflect.DeepEqual(testtree.Contents(t, h.Root), before) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// The configuration of the package has only comments: it makes way, and uninstall restores it.
func TestAConfigurationWithoutSettingsMakesWay(t *testing.T) {
	for _, text := range []string{"# nothing\n", "", "# the defaults\n[host]\n# dev-root = \"/\"\n[policy]\n"} {
		for _, toolkit := range []bool{true, false} {
			h, o := containerdTree(t, "v2-1.7.toml", "", v1735), options(t)
			o.WriteShimConfig, o.KubeletSocket = toolkit, "/data/kubelet/pod-resources/kubelet.sock"
			write(t, h.Real(o.ShimConfig), text)
			before := testtree.Contents(t, h.Root)
			for range 2 {
				applied(t)(Install(h, o))
				got := string(read(t, h.Real(o.ShimConfig)))
				if !strings.Contains(got, o.KubeletSocket) || strings.Contains(got, "debug") != toolkit || !Unchanged([]byte(got)) {
					t.Errorf("%q, toolkit %v: %s", text, toolkit, got)
				}
			}
			uninstall(t, h, o)
			if now := testtree.Contents(t, h.Root); !reflect.DeepEqual(now, before) {
				t.Errorf("%q: not as before: %v", text, now)
			}
		}
	}
}

// patch(1) produces the new file from the old one and the diff.
func TestDiffIsAPatch(t *testing.T) {
	if _, err := exec.LookPath("patch"); err != nil {
		t.Skipf("NOT TESTED: patch(1) is missing: %v", err)
	}
	for _, c := range registrations {
		h := containerdTree(t, c.config, c.extra, c.daemon)
		plan, err := register(h, containerdOptions(c.reg))
		check(t, err)
		cmd := exec.Command("patch", "-d", h.Root, "-p1")
		cmd.Stdin = strings.NewReader(plan.Diff())
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "fuzz") {
			t.Errorf("%s: %v %s\n%s", c.name, err, out, plan.Diff())
		}
		for _, change := range plan.Changes {
			if got, err := h.Read(change.Path); change.Kind == hosttree.DaemonConfig && (err != nil || string(got) != string(change.After)) {
				t.Errorf("%s: %v\n%s\nwant\n%s", c.name, err, got, change.After)
			}
		}
	}
}

// Undo restores the earlier files, however many of the changes were made.
func TestUndo(t *testing.T) {
	for made := range 12 {
		h := containerdTree(t, "v2-1.7.toml", "", v1735)
		o := options(t)
		shim := h.Real("/usr/local/bin/" + version.Shim)
		write(t, shim, "an older program\n")
		check(t, os.Chmod(shim, hosttree.ProgramMode))
		before := testtree.Contents(t, h.Root)
		plan, err := Install(h, o)
		check(t, err)
		undo, err := plan.Undo()
		check(t, err)
		partly := plan
		partly.Changes = plan.Changes[:min(made, len(plan.Changes))]
		check(t, partly.Apply())
		if !undo.Changed() || undo.Restart.Verb != "restart" || !slices.Equal(undo.Restart.Units, plan.Restart.Units) {
			t.Errorf("undo changes %v and runs %q", changedFiles(undo), undo.Restart)
		}
		check(t, undo.Apply())
		for _, c := range plan.Changes[:min(made, len(plan.Changes))] { // the daemon may start them until it is restarted
			if now, err := h.Read(c.Path); c.Kind == hosttree.Program && (now == nil || err != nil) {
				t.Errorf("%s has gone before the restart: %v", c.Path, err)
			}
		}
		_, err = undo.RemovePrograms(procfs.FS(t.TempDir()))
		check(t, err)
		if after := testtree.Contents(t, h.Root); !reflect.DeepEqual(after, before) {
			t.Errorf("after %d changes: %v, want %v", made, after, before)
		}
	}
}
