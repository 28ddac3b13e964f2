package runtimeclass

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

var check = testtree.Check

const testConfig = "/etc/containerd/config.toml"

// Versions of containerd in the tests.
var (
	v1620 = semver.Version{Major: 1, Minor: 6, Patch: 20}
	v1735 = semver.Version{Major: 1, Minor: 7, Patch: 35}
	v2010 = semver.Version{Minor: 0, Major: 2, Patch: 10}
	v229  = semver.Version{Major: 2, Minor: 2, Patch: 9}
	v237  = semver.Version{Major: 2, Minor: 3, Patch: 7}
	v242  = semver.Version{Major: 2, Minor: 4, Patch: 2}
)

func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	check(t, err)
	return data
}

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	return read(t, filepath.Join("testdata", name))
}

// tree creates a root directory with files: each is a fixture's name, or text with a newline.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		if text != "" && !strings.Contains(text, "\n") {
			text = string(fixture(t, text))
		}
		write(t, filepath.Join(root, name), text)
	}
	return root
}

func write(t testing.TB, name, text string) {
	t.Helper()
	check(t, errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o640)))
}

// applied applies a plan: applied(t)(register(...)).
func applied(t testing.TB) func(Plan, error) Plan {
	return func(p Plan, err error) Plan {
		t.Helper()
		if err == nil {
			err = p.Apply()
		}
		check(t, err)
		return p
	}
}

// The forms of a handler, with and without the option of the default runtime.
var (
	byName     = Runtime{Type: RuntimeType}
	byPath     = Runtime{Type: stockType, Path: DefaultBinDir + "/" + version.Shim}
	withCgroup = Runtime{byPath.Type, byPath.Path, map[string]any{"SystemdCgroup": true}}
	overNVIDIA = Runtime{byPath.Type, byPath.Path, map[string]any{"SystemdCgroup": true, "BinaryName": "runc"}}
)

// Handlers in the section of the other generation, and a drop-in beside them.
const (
	twoRuntimes = "[plugins.\"SECTION\".containerd]\n  default_runtime_name = \"runc\"\n[plugins.\"SECTION\".containerd.runtimes.kata]\n  runtime_type = \"io.containerd.kata.v2\"\n" +
		"[plugins.\"SECTION\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n  [plugins.\"SECTION\".containerd.runtimes.runc.options]\n    SystemdCgroup = true\n"
	confD = "imports = [\"/etc/containerd/conf.d/*.toml\"]\n"
)

func runtimesIn(section string) string { return strings.ReplaceAll(twoRuntimes, "SECTION", section) }

const (
	dropIn      = "/etc/containerd/conf.d/nvidia-shim.toml"
	v2Section   = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n"
	extraImport = "version = 2\nimports = [\"/etc/containerd/extra.toml\"]\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"a\"\n"
)

// registrations are configurations that an installer meets, with the expected results.
var registrations = []struct {
	name string
	// config is a fixture, or text with a newline; "none" is no file.
	config string
	// extra is the fixture of a further file, extra.toml.
	extra  string
	daemon semver.Version
	reg    Registration
	// changed is the file that changes, if it is not config.
	changed string
	want    Runtime
}{
	{name: "the default configuration of 2.4.2 imports conf.d", config: "default-2.4.2.toml", daemon: v242, changed: dropIn, want: byName},
	{name: "with set-default", config: "default-2.4.2.toml", daemon: v242, reg: Registration{Default: true}, changed: dropIn, want: byName},
	{name: "a directory out of PATH needs the path", config: "default-2.4.2.toml", daemon: v242, reg: Registration{BinDir: "/opt/shim"},
		changed: dropIn, want: Runtime{stockType, "/opt/shim/" + version.Shim, map[string]any{"SystemdCgroup": false}}},
	{name: "2.3 is given the path", config: "v3-imports.toml", daemon: v237, changed: dropIn, want: withCgroup},
	{name: "2.0 does not merge imports", config: "v3-imports.toml", daemon: v2010, reg: Registration{Default: true}, want: withCgroup},
	{name: "1.6 is given the name", config: "v2-1.7.toml", daemon: v1620, want: byName},
	{name: "1.6 is given the name, even out of PATH", config: "v2-1.7.toml", daemon: v1620, reg: Registration{BinDir: "/opt/shim"}, want: byName},
	{name: "1.7", config: "v2-1.7.toml", daemon: v1735, reg: Registration{Default: true}, want: withCgroup},
	{name: "1.7 with an import that has the section", config: extraImport, extra: "v2-1.7.toml", daemon: v1735,
		changed: "/etc/containerd/extra.toml", want: withCgroup},
	{name: "an unknown version is served by the path", config: "v2-1.7.toml", want: withCgroup},
	{name: "comments, odd formatting, no newline at the end", config: "comments.toml", daemon: v242, reg: Registration{Default: true}, want: byName},
	{name: "kind's node", config: "kind.toml", daemon: v229, want: withCgroup},
	{name: "without a version", config: "no-version.toml", daemon: v242, want: byName},
	{name: "without a version, 1.7", config: "no-version.toml", daemon: v1735, reg: Registration{Default: true}, want: byPath},
	{name: "without a version, 2.2, which does not migrate such sections", config: "no-version.toml", daemon: v229, reg: Registration{Default: true}, want: byPath},
	{name: "a section of version 1, 2.2", config: "[plugins.cri]\n  disable_apparmor = true\n", daemon: v229, want: byPath},
	{name: "a section of version 1, 2.4", config: "[plugins.cri.containerd]\n  default_runtime_name = \"runc\"\n", daemon: v242, reg: Registration{Default: true}, want: byName},
	{name: "a section of version 2 without a version, 2.4", config: "[plugins.\"io.containerd.grpc.v1.cri\"]\n  disable_apparmor = true\n",
		daemon: v242, reg: Registration{Default: true}, want: byName},
	{name: "a section of version 1, 1.7", config: "[plugins.cri]\n  disable_apparmor = true\n", daemon: v1735, reg: Registration{Default: true}, want: byPath},
	{name: "a value of several lines at the end, without the last line's end", config: "version = 2\nrequired_plugins = [\n # none\n]", daemon: v242, want: byName},
	{name: "no file", config: "none", daemon: v242, reg: Registration{Default: true}, want: byName},
	{name: "no file, 1.7", config: "none", daemon: v1735, want: byPath},
	{name: "an empty file", daemon: v242, want: byName},
	{name: "beside NVIDIA's toolkit, which is the default", config: "toolkit.toml", daemon: v242, reg: Registration{Handler: "nvidia-shim"}, changed: dropIn, want: byName},
	{name: "in place of NVIDIA's toolkit", config: "toolkit.toml", daemon: v242, reg: Registration{Replace: true}, changed: dropIn, want: overNVIDIA},
	{name: "in place of NVIDIA's toolkit, 2.0", config: "toolkit.toml", daemon: v2010, reg: Registration{Replace: true}, want: withCgroup},
	{name: "below a default table without the key", config: v2Section + "  snapshotter = \"native\"\n", daemon: v242, reg: Registration{Default: true}, want: byName},
	{name: "the default as the last line, without its end", config: v2Section + "default_runtime_name = \"runc\"", daemon: v242, reg: Registration{Default: true}, want: byName},
	{name: "version 3 with the section of 1.x", config: "version = 3\n" + runtimesIn(criV2), daemon: v242, reg: Registration{Default: true}, want: byName},
	{name: "version 3 with the section of 1.x, unknown daemon", config: "version = 3\n" + runtimesIn(criV2), want: withCgroup},
	{name: "version 3 with the section of 1.x, beside a drop-in", config: "version = 3\n" + confD + runtimesIn(criV2), daemon: v242, reg: Registration{Default: true}, changed: dropIn, want: byName},
	{name: "version 2 with the section of 2.x", config: "version = 2\n" + runtimesIn(criV3), daemon: v242, reg: Registration{Default: true}, want: byName},
	{name: "version 2 with the section of 2.x, 2.2", config: "version = 2\n" + runtimesIn(criV3), daemon: v229, want: withCgroup},
	{name: "a drop-in beside version 2, 2.4", config: "version = 2\n" + confD + runtimesIn(criV2), daemon: v242, reg: Registration{Default: true}, changed: dropIn, want: byName},
	{name: "a drop-in beside version 2, 2.2, which merges before it migrates", config: "version = 2\n" + confD + runtimesIn(criV2), daemon: v229, reg: Registration{Default: true}, changed: dropIn, want: withCgroup},
	{name: "a drop-in beside version 2 with the section of 2.x, 2.2", config: "version = 2\n" + confD + runtimesIn(criV3), daemon: v229, changed: dropIn, want: withCgroup},
	{name: "the default in one section and the runtimes in the other", config: "version = 3\n[plugins.\"" + criV3 + "\".containerd]\n  default_runtime_name = \"runc\"\n" + runtimesIn(criV2), daemon: v242, reg: Registration{Default: true}, want: byName},
	{name: "lines that end like those of Windows", config: "version = 3\r\n[plugins.\"io.containerd.cri.v1.runtime\".containerd]\r\n  default_runtime_name = \"runc\"\r\n",
		daemon: v242, reg: Registration{Default: true}, want: byName},
}

// theDefault returns the default runtime after a registration.
func theDefault(config string, reg Registration) string {
	if reg.Default || config == "toolkit.toml" {
		return "nvidia"
	}
	return "runc"
}

// containerdTree returns a host with a configuration of containerd and a further file, if it is not
// "".
func containerdTree(t testing.TB, config, extra string, daemon semver.Version) Host {
	t.Helper()
	files := map[string]string{testConfig: config, "/etc/containerd/extra.toml": extra}
	if config == "none" {
		delete(files, testConfig)
	}
	if extra == "" {
		delete(files, "/etc/containerd/extra.toml")
	}
	return Host{Tree: hosttree.Tree{Root: tree(t, files)}, Daemon: daemon}
}

// filled completes a registration with the defaults of the flags.
func (r Registration) filled() Registration {
	r.Handler, r.BinDir = cmp.Or(r.Handler, DefaultHandler), cmp.Or(r.BinDir, DefaultBinDir)
	return r
}

func register(h Host, o Options) (Plan, error) {
	p, err := newPlan(h, o, false)
	if err == nil {
		err = p.register(o)
	}
	return p, err
}

func unregister(h Host, o Options) (Plan, error) {
	p, err := newPlan(h, o, true)
	if err == nil {
		err = p.unregister(o, "")
	}
	return p, err
}

func containerdOptions(r Registration) Options {
	return Options{Target: Containerd, ConfigFile: testConfig, Registration: r.filled()}
}

func TestInstallContainerd(t *testing.T) {
	for _, c := range registrations {
		t.Run(c.name, func(t *testing.T) {
			h, o := containerdTree(t, c.config, c.extra, c.daemon), containerdOptions(c.reg)
			before := testtree.Contents(t, h.Root)
			plan, err := register(h, o)
			if now := testtree.Contents(t, h.Root); err != nil || !reflect.DeepEqual(now, before) || plan.Diff() == "" || len(plan.Notes) == 0 {
				t.Fatalf("the plan changed files, or says nothing: %+v %v", plan, err)
			}
			applied(t)(plan, err)
			after := testtree.Contents(t, h.Root)
			checkKept(t, before, after, cmp.Or(c.changed, testConfig))
			checkRegistered(t, h, o.Registration, c.want, theDefault(c.config, c.reg))
			checkUndone(t, h, o, before)
		})
	}
}

// checkUndone checks that a second installation changes nothing and that the removal restores the
// earlier files.
func checkUndone(t *testing.T, h Host, o Options, before map[string]string) {
	t.Helper()
	after := testtree.Contents(t, h.Root)
	again := applied(t)(register(h, o))
	if now := testtree.Contents(t, h.Root); again.Changed() || !reflect.DeepEqual(now, after) {
		t.Errorf("a second installation changes:\n%s", again.Diff())
	}
	applied(t)(unregister(h, o))
	if now := testtree.Contents(t, h.Root); !reflect.DeepEqual(now, before) {
		t.Errorf("not as before:\n%v\nwant\n%v", now, before)
	}
}

// checkKept checks that only one file changed, that it still has each of its lines in order, and
// that there is a backup of the original.
func checkKept(t *testing.T, before, after map[string]string, changed string) {
	t.Helper()
	for name, text := range before {
		if name != changed && after[name] != text {
			t.Errorf("%s changed", name)
		}
	}
	rest := after[changed]
	for line := range strings.Lines(before[changed]) {
		_, behind, ok := strings.Cut(rest, strings.TrimRight(line, "\r\n"))
		if !ok {
			t.Errorf("%s: the line %q is lost", changed, line)
		}
		rest = behind
	}
	// The file has a backup, or is new.
	if before[changed] == after[changed] || after[changed+hosttree.BackupSuffix] != before[changed] || len(after) != len(before)+1 {
		t.Errorf("%s did not change, or has no back-up: %v", changed, slices.Sorted(maps.Keys(after)))
	}
}

func checkRegistered(t *testing.T, h Host, reg Registration, want Runtime, theDefault string) {
	t.Helper()
	c, err := ReadConfiguration(h, testConfig)
	check(t, err)
	if got := c.Runtimes[reg.Handler]; !reflect.DeepEqual(got, want) {
		t.Errorf("runtime %+v, want %+v", got, want)
	}
	if c.Default != theDefault {
		t.Errorf("default %q, want %q", c.Default, theDefault)
	}
}

func TestUninstallKeepsWhatOthersChanged(t *testing.T) {
	h, o := containerdTree(t, "v2-1.7.toml", "", v1735), containerdOptions(Registration{Default: true})
	applied(t)(register(h, o))
	edit := func(text string) string {
		return strings.Replace(text, "pause:3.8", "pause:3.10", 1) + "\n[debug]\n  level = \"debug\"\n"
	}
	write(t, h.Real(testConfig), edit(string(read(t, h.Real(testConfig)))))
	// The operator's lines follow ours now; nothing has to move.
	again, err := register(h, o)
	if err != nil || again.Changed() {
		t.Errorf("%v\n%s", err, again.Diff())
	}
	p := applied(t)(unregister(h, o))
	original := string(fixture(t, "v2-1.7.toml"))
	if got, want := string(read(t, h.Real(testConfig))), edit(original); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !strings.Contains(strings.Join(p.Notes, "\n"), "has been changed since") {
		t.Errorf("notes %q", p.Notes)
	}
	if backup := string(read(t, h.Real(testConfig+hosttree.BackupSuffix))); backup != original {
		t.Errorf("back-up %q", backup)
	}
}

// A further handler is added to those of earlier installations, and their default stays. The backup
// is still that of the first installation.
func TestInstallAgainWithAnotherChoice(t *testing.T) {
	h := containerdTree(t, "v3-imports.toml", "", v2010)
	before := testtree.Contents(t, h.Root)
	for i, s := range []struct {
		daemon semver.Version
		reg    Registration
		drop   bool
		want   Runtime
		def    string
	}{
		{v2010, Registration{Default: true}, false, withCgroup, "nvidia"},
		{v2010, Registration{Handler: "gpu"}, false, withCgroup, "nvidia"},
		// After an update of containerd the drop-in replaces the edit.
		{v242, Registration{}, false, byName, "nvidia"},
		{v242, Registration{Handler: "gpu"}, false, byName, "nvidia"},
		{v2010, Registration{}, false, withCgroup, "nvidia"},
		{v2010, Registration{}, true, withCgroup, "runc"},
		{v2010, Registration{}, false, withCgroup, "runc"},
		{v2010, Registration{Handler: "gpu", Default: true}, false, withCgroup, "gpu"},
	} {
		h.Daemon = s.daemon
		o := containerdOptions(s.reg)
		o.DropDefault = s.drop
		applied(t)(register(h, o))
		checkRegistered(t, h, s.reg.filled(), s.want, s.def)
		c, err := ReadConfiguration(h, testConfig)
		if err != nil || len(c.Runtimes) != min(i, 1)+2 || !c.Runtimes["nvidia"].Ours() {
			t.Errorf("step %d: %v %v", i, c.Runtimes, err)
		}
		if backup, ok := testtree.Contents(t, h.Root)[testConfig+hosttree.BackupSuffix]; ok != (s.daemon == v2010) || ok && backup != before[testConfig] {
			t.Errorf("step %d: the back-up is not the first state: %s", i, backup)
		}
	}
	checkUndone(t, h, containerdOptions(Registration{Handler: "gpu", Default: true}), before)
}

func TestInstallContainerdRefuses(t *testing.T) {
	for _, c := range []struct {
		name, text string
		daemon     semver.Version
		reg        Registration
		want       string
	}{
		{name: "a handler of another runtime, in the file to edit", text: "v2-1.7.toml", daemon: v1735, reg: Registration{Handler: "runc"}, want: `a runtime named "runc" already exists in /etc/containerd/config.toml ({"options":{"SystemdCgroup":true},"runtime_type":"io.containerd.runc.v2"}): use another --handler, or --replace`},
		{name: "a handler of another runtime, beside a drop-in", text: "toolkit.toml", daemon: v242, want: `"BinaryName":"/usr/bin/nvidia-container-runtime"`},
		{name: "broken TOML", text: "version = 2\n[plugins", daemon: v242, want: testConfig + ": line 2: toml: "},
		{name: "a version that is not known", text: "version = 5\n", daemon: v242, want: "version 5"},
		{name: "a version that is no number", text: "version = \"2\"\n", daemon: v242, want: "version"},
		{name: "runtimes as an inline table", text: "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nruntimes = { runc = { runtime_type = \"io.containerd.runc.v2\" } }\n", daemon: v242, want: "by hand"},
		{name: "our block without its end", text: "version = 2\n" + strings.Split(tomledit.Block(""), "\n")[0] + "\n", daemon: v242, want: "has no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := register(containerdTree(t, c.text, "", c.daemon), containerdOptions(c.reg))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v has no %q", err, c.want)
			}
		})
	}
}

func TestApplyLeavesChangedFilesAlone(t *testing.T) {
	h := containerdTree(t, "v2-1.7.toml", "", v1735)
	plan, err := register(h, containerdOptions(Registration{}))
	check(t, err)
	write(t, h.Real(testConfig), "version = 2\n")
	if err := plan.Apply(); err == nil || !strings.Contains(err.Error(), "changed by another process") {
		t.Errorf("error %v", err)
	}
}

// A linked configuration stays a link; its imports are relative to the link, as for containerd.
func TestInstallKeepsLinks(t *testing.T) {
	const target = "/etc/real/config.toml"
	h := containerdTree(t, "none", "v2-1.7.toml", v237)
	write(t, h.Real(target), "version = 2\nimports = [\"extra.toml\", \"config.toml\"]\n")
	check(t, os.Symlink(target, h.Real(testConfig)))
	before := testtree.Contents(t, h.Root)
	o := containerdOptions(Registration{})
	applied(t)(register(h, o))
	if to, err := os.Readlink(h.Real(testConfig)); err != nil || to != target {
		t.Errorf("link %q, %v", to, err)
	}
	checkKept(t, before, testtree.Contents(t, h.Root), target)
	checkRegistered(t, h, o.Registration, withCgroup, "runc")
	checkUndone(t, h, o, before)
}

// daemons returns the containerd programs that were built for tests.
func daemons(t *testing.T) []string {
	t.Helper()
	bin := os.Getenv("NVIDIA_SHIM_BIN")
	if bin == "" {
		bin = "../bin"
	}
	var programs []string
	for _, pattern := range []string{"tools/containerd", "daemons/*/containerd"} {
		found, err := filepath.Glob(filepath.Join(bin, pattern))
		check(t, err)
		programs = append(programs, found...)
	}
	return programs
}

// parsed returns the runtime configuration in one text.
func parsed(t *testing.T, text []byte) Configuration {
	t.Helper()
	h := Host{Tree: hosttree.Tree{Root: t.TempDir()}}
	write(t, h.Real(testConfig), string(text))
	c, err := ReadConfiguration(h, testConfig)
	check(t, err)
	return c
}

// `make test-unit` on a fresh clone.
func TestWithoutContainerdTheTestSaysThatItIsLeftOut(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestContainerdReadsTheResult$")
	cmd.Env = append(os.Environ(), "NVIDIA_SHIM_BIN="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "NOT TESTED: no bin/tools/containerd") || !strings.Contains(string(out), "--- SKIP: ") {
		t.Errorf("%v: %s", err, out)
	}
}

// containerd itself reads the result.
func TestContainerdReadsTheResult(t *testing.T) {
	all := daemons(t)
	if len(all) == 0 {
		t.Skip("NOT TESTED: no bin/tools/containerd and bin/daemons: run `make tools daemons`")
	}
	for _, program := range all {
		version, err := DaemonVersion(t.Context(), program)
		check(t, err)
		for _, c := range registrations {
			newer := strings.HasPrefix(c.config, "default-2.4") && !version.AtLeast(2, 3, 0) || // of version 4
				strings.HasPrefix(c.config, "version = 3") && !version.AtLeast(2, 0, 0)
			if c.daemon.Known() && c.daemon.AtLeast(2, 0, 0) != version.AtLeast(2, 0, 0) || newer {
				continue
			}
			t.Run(version.String()+"/"+c.name, func(t *testing.T) {
				h := containerdTree(t, c.config, c.extra, version)
				// The program sees the files at their real paths.
				for name := range testtree.Contents(t, h.Root) {
					p := h.Real(name)
					data := regexp.MustCompile(`(['"])/etc/containerd/`).ReplaceAll(read(t, p), []byte("${1}"+h.Root+"/etc/containerd/"))
					// containerd 1.7 omits disabled plugins from its dump.
					data = bytes.ReplaceAll(data, []byte(`["cri"]`), []byte(`[]`))
					write(t, p, string(data))
				}
				o := containerdOptions(c.reg)
				o.ConfigFile = h.Real(testConfig)
				// containerd's own dump is compared before and after.
				applied(t)(register(Host{Daemon: version, Program: program}, o))
				dump, err := exec.Command(program, "--config", o.ConfigFile, "config", "dump").Output()
				if err != nil {
					t.Fatalf("config dump: %v", err)
				}
				got := parsed(t, dump)
				reg := o.Registration
				r := got.Runtimes[reg.Handler]
				named := version.AtLeast(2, 4, 0) && reg.inPath() && !reg.Replace || !version.AtLeast(1, 7, 0)
				if !r.Ours() || (r.Type == RuntimeType) != named || !named && r.Path != reg.shim() || got.Default != theDefault(c.config, c.reg) {
					t.Errorf("handler %+v, default %q", r, got.Default)
				}
				if name, _ := r.Options["BinaryName"].(string); name != "" && name != "runc" || got.Runtimes["runc"].Type == "" {
					t.Errorf("runc is lost, or its options are another runtime's: %v", got.Runtimes)
				}
				applied(t)(unregister(Host{Daemon: version, Program: program}, o))
			})
		}
	}
}

// nvidiaTOML is the drop-in of NVIDIA's toolkit.
const nvidiaTOML = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\n  runtime_type = \"io.containerd.runc.v2\"\n" +
	"  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n    BinaryName = \"/usr/bin/nvidia-container-runtime\"\n    SystemdCgroup = true\n"

// NVIDIA's runtime in a file of its own, and in the main file too, is replaced until uninstall.
func TestReplaceNVIDIAsDropIn(t *testing.T) {
	const imports = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n"
	const theirs = "/etc/containerd/conf.d/99-nvidia.toml"
	for _, daemon := range []semver.Version{{}, v1735, v2010, v229, v242} {
		for name, main := range map[string]string{"in the drop-in": imports, "in both": imports + strings.TrimPrefix(nvidiaTOML, "version = 2\n")} {
			h := Host{Tree: hosttree.Tree{Root: tree(t, map[string]string{testConfig: main, theirs: nvidiaTOML})}, Daemon: daemon}
			before := testtree.Contents(t, h.Root)
			if _, err := register(h, containerdOptions(Registration{})); err == nil || !strings.Contains(err.Error(), "--replace") {
				t.Errorf("%s, %s, without --replace: %v", name, daemon, err)
			}
			applied(t)(register(h, containerdOptions(Registration{Replace: true})))
			after := testtree.Contents(t, h.Root)
			c, err := ReadConfiguration(h, testConfig)
			if r := c.Runtimes["nvidia"]; err != nil || !r.Ours() || r.Options["BinaryName"] == "/usr/bin/nvidia-container-runtime" && (daemon == semver.Version{} || h.mergesImports()) {
				t.Errorf("%s, %s: %+v %v", name, daemon, r, err)
			}
			if (after[theirs] == before[theirs]) != h.mergesImports() {
				t.Errorf("%s, %s: %s", name, daemon, after[theirs])
			}
			checkUndone(t, h, containerdOptions(Registration{}), before)
		}
	}
	h := Host{Tree: hosttree.Tree{Root: tree(t, map[string]string{testConfig: imports, "/etc/containerd/conf.d/zz.toml": nvidiaTOML})}, Daemon: v242}
	if _, err := register(h, containerdOptions(Registration{Replace: true})); err == nil || !strings.Contains(err.Error(), "remove it there") {
		t.Errorf("a file after ours: %v", err)
	}
}

// What an installation replaced stays replaced without --replace, and with a further handler.
func TestInstallAgainAfterReplace(t *testing.T) {
	h := containerdTree(t, "toolkit.toml", "", v242)
	before := testtree.Contents(t, h.Root)
	applied(t)(register(h, containerdOptions(Registration{Replace: true})))
	for _, reg := range []Registration{{}, {Handler: "gpu"}, {}} {
		again, err := register(h, containerdOptions(reg))
		if err == nil && again.Changed() != (reg.Handler != "") {
			t.Errorf("%+v: changes\n%s", reg, again.Diff())
		}
		applied(t)(again, err)
		if c, err := ReadConfiguration(h, testConfig); err != nil || !c.Runtimes["nvidia"].Ours() || !c.Runtimes[reg.filled().Handler].Ours() {
			t.Errorf("%+v: %v %+v", reg, err, c.Runtimes)
		}
	}
	checkUndone(t, h, containerdOptions(Registration{}), before)

	h = dockerTree(t, `{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}`)
	before = testtree.Contents(t, h.Root)
	for _, reg := range []Registration{{Replace: true}, {Handler: "gpu"}, {}} {
		applied(t)(register(h, dockerOptions(reg)))
	}
	if text := string(read(t, h.Real(DefaultDockerConfig))); strings.Count(text, RuntimeType) != 2 {
		t.Errorf("%s", text)
	}
	checkUndone(t, h, dockerOptions(Registration{}), before)
}
