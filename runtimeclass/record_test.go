package runtimeclass

import (
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

func uninstall(t *testing.T, h Host, o Options) Plan {
	t.Helper()
	p := applied(t)(Uninstall(h, o))
	if stay, err := p.RemovePrograms(procfs.FS(t.TempDir())); err != nil || len(stay) > 0 {
		t.Fatalf("stay %v, %v", stay, err)
	}
	return p
}

func withDocker(o Options) Options {
	o.Target, o.ConfigFile = Docker, DefaultDockerConfig
	return o
}

func programs(t *testing.T, h Host) (n int) {
	t.Helper()
	for _, name := range Programs {
		if testtree.Tree(t, h.Root)[path.Join(DefaultBinDir, name)] != "" {
			n++
		}
	}
	return n
}

// The programs stay while another daemon is registered.
func TestUninstallKeepsWhatAnotherDaemonNeeds(t *testing.T) {
	h, o := containerdTree(t, "v2-1.7.toml", "", v1735), options(t)
	before := testtree.Tree(t, h.Root)
	applied(t)(Install(Host{Tree: hosttree.Tree{Root: h.Root}}, withDocker(o)))
	applied(t)(Install(h, o))
	if st, err := os.Stat(h.Real(RecordPath)); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("record: %v %v", st, err)
	}
	if list, err := Registered(h, o); err != nil || len(list) != 2 {
		t.Errorf("registrations %+v, %v", list, err)
	}
	uninstall(t, h, o)
	if n := programs(t, h); n != len(Programs) {
		t.Errorf("%d programs left for Docker", n)
	}
	p := uninstall(t, h, withDocker(o))
	if now := testtree.Tree(t, h.Root); !reflect.DeepEqual(now, before) {
		t.Errorf("not as before: %v", now)
	}
	for _, name := range []string{UnitPath, UnitLink, o.ShimConfig, path.Join(DefaultBinDir, version.Shim), DefaultDockerConfig} {
		if !slices.Contains(p.Removed(), name) {
			t.Errorf("the plan does not list %s: %v", name, p.Removed())
		}
	}
}

// Files that the installation did not write, or that changed since, stay.
func TestUninstallKeepsFilesOfOthers(t *testing.T) {
	h, o := containerdTree(t, "v2-1.7.toml", "", v1735), options(t)
	for _, name := range Programs {
		write(t, h.Real(path.Join(DefaultBinDir, name)), "a program\n")
		check(t, os.Chmod(h.Real(path.Join(DefaultBinDir, name)), hosttree.ProgramMode))
	}
	before := testtree.Tree(t, h.Root)
	if p := uninstall(t, h, o); len(p.Written())+len(p.Removed()) > 0 {
		t.Errorf("uninstall without an installation changes %v %v", p.Written(), p.Removed())
	}
	applied(t)(Install(h, o))
	uninstall(t, h, o)
	if now := testtree.Tree(t, h.Root); !reflect.DeepEqual(now, before) {
		t.Errorf("not as before: %v", now)
	}

	check(t, os.Remove(h.Real(path.Join(DefaultBinDir, version.Ctl))))
	applied(t)(Install(h, o))
	write(t, h.Real(path.Join(DefaultBinDir, version.Ctl)), "the operator's\n")
	write(t, h.Real(UnitPath), "[Unit]\n")
	p := uninstall(t, h, o)
	if notes := strings.Join(p.Notes, "\n"); programs(t, h) != len(Programs) || testtree.Tree(t, h.Root)[UnitPath] == "" ||
		!strings.Contains(notes, UnitPath+" stays") || !strings.Contains(notes, version.Ctl+" stays") {
		t.Errorf("changed files: %v", notes)
	}
}

// Earlier programs with these names are restored once no process runs the shim.
func TestUninstallBringsProgramsBack(t *testing.T) {
	h, o := containerdTree(t, "v2-1.7.toml", "", v1735), options(t)
	for _, name := range Programs {
		write(t, h.Real(path.Join(DefaultBinDir, name)), "an older program\n")
		check(t, os.Chmod(h.Real(path.Join(DefaultBinDir, name)), hosttree.ProgramMode))
	}
	before := testtree.Tree(t, h.Root)
	applied(t)(Install(h, o))
	applied(t)(Install(Host{Tree: hosttree.Tree{Root: h.Root}}, withDocker(o)))
	uninstall(t, h, o)
	uninstall(t, h, withDocker(o))
	if now := testtree.Tree(t, h.Root); !reflect.DeepEqual(now, before) {
		t.Errorf("not as before: %v", now)
	}
	// A program that changed since stays, and so does the backup of what it replaced.
	check(t, os.Chmod(h.Real(path.Join(DefaultBinDir, version.Shim)), 0o700))
	applied(t)(Install(h, o))
	write(t, h.Real(path.Join(DefaultBinDir, version.Ctl)), "the operator's\n")
	uninstall(t, h, o)
	now := testtree.Tree(t, h.Root)
	for name, want := range map[string]string{version.Shim: "an older", version.Ctl: "the operator's", version.Ctl + hosttree.BackupSuffix: "an older"} {
		if !strings.Contains(now[path.Join(DefaultBinDir, name)], want) {
			t.Errorf("%s: %q, want %s", name, now[path.Join(DefaultBinDir, name)], want)
		}
	}
	applied(t)(Install(h, o))
	if uninstall(t, h, o); !strings.Contains(testtree.Tree(t, h.Root)[path.Join(DefaultBinDir, version.Ctl)], "the operator's") {
		t.Error("after a second installation the operator's program did not come back")
	}
}

// A process is killed after some changes, while it makes the next one. Another process completes
// the installation or the removal.
func TestAnInstallationThatIsCutShort(t *testing.T) {
	o := options(t)
	o.PrepareUnit, o.WriteShimConfig = false, false
	newer := o
	newer.Programs = t.TempDir()
	for _, name := range Programs {
		write(t, path.Join(newer.Programs, name), "a newer program\n")
	}
	var h Host
	var before, installed map[string]string
	fresh := func() {
		h = containerdTree(t, "v2-1.7.toml", "", v1735)
		for _, name := range Programs[:2] {
			write(t, h.Real(path.Join(DefaultBinDir, name)), "an older program\n")
			check(t, os.Chmod(h.Real(path.Join(DefaultBinDir, name)), hosttree.ProgramMode))
		}
		before = testtree.Contents(t, h.Root)
	}
	cut := func(p Plan, err error, made int) {
		t.Helper()
		check(t, err)
		list := slices.Concat(p.Changes, p.Programs)
		for i, c := range list[:min(made+1, len(list))] {
			if i < made {
				check(t, h.Apply(c))
				continue
			}
			half := h.Real(path.Join(path.Dir(c.Path), "."+path.Base(c.Path)+".nvidia-shim-123"))
			check(t, os.MkdirAll(path.Dir(half), 0o755))
			write(t, half, "half")
		}
	}
	same := func(made int, what string, want map[string]string) {
		t.Helper()
		now := testtree.Contents(t, h.Root)
		maps.DeleteFunc(now, func(name, text string) bool { return text == want[name] })
		if len(now) > 0 || len(testtree.Contents(t, h.Root)) != len(want) {
			t.Errorf("%s, cut short after %d changes, differs: %q", what, made, now)
		}
	}
	fresh()
	applied(t)(Install(h, o))
	installed = testtree.Contents(t, h.Root)
	for made := range 14 {
		fresh()
		plan, err := Install(h, o)
		cut(plan, err, made)
		uninstall(t, h, o)
		same(made, "the removal of an installation", before)

		fresh()
		plan, err = Install(h, o)
		cut(plan, err, made)
		applied(t)(Install(h, o))
		same(made, "an installation", installed)
		plan, err = Install(h, newer)
		cut(plan, err, made)
		uninstall(t, h, newer)
		same(made, "the removal of an upgrade", before)

		fresh()
		applied(t)(Install(h, o))
		plan, err = Uninstall(h, o)
		cut(plan, err, made)
		uninstall(t, h, o)
		same(made, "a removal", before)
	}
}

// A runtime of Docker that an operator registered by hand stays, with the programs. Installing next
// to it and uninstalling restores every byte.
func TestUninstallKeepsARuntimeThatWasRegisteredByHand(t *testing.T) {
	for _, text := range []string{
		`{"runtimes":{"gpu":{"runtimeType":"io.containerd.nvidia.v2","options":{"A":"b"}}}}`,
		`{"debug": true, "runtimes":{"nvidia":{"runtimeType":"/opt/containerd-shim-nvidia-v2"}}}`,
		`{"runtimes":{"nvidia":{"runtimeType":"io.containerd.nvidia.v2"}}}`,
		"{\n  \"debug\": true,\n  \"runtimes\": {\n    \"nvidia\": {\n      \"runtimeType\": \"io.containerd.nvidia.v2\"\n    }\n  }\n}\n",
	} {
		h, o := dockerTree(t, text), withDocker(options(t))
		write(t, h.Real(path.Join(DefaultBinDir, version.Shim)), "a program\n")
		check(t, os.Chmod(h.Real(path.Join(DefaultBinDir, version.Shim)), hosttree.ProgramMode))
		before := testtree.Tree(t, h.Root)
		if list, err := Registered(h, o); err != nil || len(list) > 0 {
			t.Errorf("%s: registrations %+v, %v", text, list, err)
		}
		p := uninstall(t, h, o)
		if now := testtree.Tree(t, h.Root); !reflect.DeepEqual(now, before) || !strings.Contains(strings.Join(p.Notes, "\n"), "by hand") {
			t.Errorf("%s: without an installation: %v, %v", text, now, p.Notes)
		}
		applied(t)(Install(h, o))
		installed := string(read(t, h.Real(DefaultDockerConfig)))
		if strings.Contains(text, "gpu") && !strings.Contains(installed, `"A": "b"`) {
			t.Errorf("installed:\n%s", installed)
		}
		applied(t)(Install(h, o))
		if again := string(read(t, h.Real(DefaultDockerConfig))); again != installed {
			t.Errorf("installed twice:\n%s", again)
		}
		uninstall(t, h, o)
		if now := testtree.Tree(t, h.Root); !reflect.DeepEqual(now, before) {
			t.Errorf("%s: not as before: %v", text, now)
		}
	}
}

// Programs that an uninstallation left because of KeepPrograms are removed by the next one.
func TestUninstallRemovesKeptPrograms(t *testing.T) {
	h, o := containerdTree(t, "v2-1.7.toml", "", v1735), options(t)
	applied(t)(Install(h, o))
	keep := o
	keep.KeepPrograms = true
	uninstall(t, h, keep)
	if programs(t, h) != len(Programs) {
		t.Error("the programs did not stay")
	}
	uninstall(t, h, o)
	if programs(t, h) != 0 {
		t.Error("the programs stay")
	}
}

func TestARecordOfOthersIsRefused(t *testing.T) {
	h, o := containerdTree(t, "v2-1.7.toml", "", v1735), options(t)
	for text, want := range map[string]string{
		"[]\n":                " is writable by users other than root",
		"{":                   ": line 1: unexpected end",
		"\n{}":                ": line 2: unexpected JSON object",
		"[\n{\"path\": 1}\n]": ": line 2: path: unexpected JSON number",
	} {
		write(t, h.Real(RecordPath), text)
		check(t, os.Chmod(h.Real(RecordPath), map[bool]os.FileMode{true: 0o666, false: 0o600}[text == "[]\n"]))
		if _, err := Uninstall(h, o); err == nil || !strings.Contains(err.Error(), RecordPath+want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
