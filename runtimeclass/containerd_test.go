package runtimeclass

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const testConfig = "/etc/containerd/config.toml"

// versions of containerd that tests speak of.
var (
	v1620 = Version{Major: 1, Minor: 6, Patch: 20}
	v1735 = Version{Major: 1, Minor: 7, Patch: 35}
	v2010 = Version{Minor: 0, Major: 2, Patch: 10}
	v229  = Version{Major: 2, Minor: 2, Patch: 9}
	v237  = Version{Major: 2, Minor: 3, Patch: 7}
	v242  = Version{Major: 2, Minor: 4, Patch: 2}
)

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// tree makes a root directory with the given files.
func tree(t testing.TB, files map[string][]byte) string {
	t.Helper()
	root := t.TempDir()
	for name, data := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, data, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// contents reads all files below a root, with mode and text.
func contents(t testing.TB, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.Walk(root, func(p string, st os.FileInfo, err error) error {
		if err != nil || st.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		rel, _ := filepath.Rel(root, p)
		out["/"+rel] = st.Mode().String() + "\n" + string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// applied makes the changes of a plan: applied(t)(installContainerd(...)).
func applied(t testing.TB) func(Plan, error) Plan {
	return func(p Plan, err error) Plan {
		t.Helper()
		if err == nil {
			err = p.Apply()
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
}

// registrations are the files that an installer meets, and what must come of them.
var registrations = []struct {
	name    string
	files   map[string]string // path below root: fixture, or text with a newline
	daemon  Version
	reg     Registration
	changed []string
	want    Runtime
	// theDefault is the default runtime afterwards.
	theDefault string
}{
	{name: "the default configuration of 2.4.2 imports conf.d", files: map[string]string{testConfig: "default-2.4.2.toml"}, daemon: v242,
		changed: []string{"/etc/containerd/conf.d/nvidia-shim.toml"}, want: Runtime{Type: RuntimeType}, theDefault: "runc"},
	{name: "with set-default", files: map[string]string{testConfig: "default-2.4.2.toml"}, daemon: v242, reg: Registration{Default: true},
		changed: []string{"/etc/containerd/conf.d/nvidia-shim.toml"}, want: Runtime{Type: RuntimeType}, theDefault: "nvidia"},
	{name: "a directory out of PATH needs the path", files: map[string]string{testConfig: "default-2.4.2.toml"}, daemon: v242, reg: Registration{BinDir: "/opt/shim"},
		changed: []string{"/etc/containerd/conf.d/nvidia-shim.toml"},
		want:    Runtime{Type: stockType, Path: "/opt/shim/" + ShimName, Options: map[string]any{"SystemdCgroup": false}}, theDefault: "runc"},
	{name: "2.3 is given the path", files: map[string]string{testConfig: "v3-imports.toml"}, daemon: v237,
		changed: []string{"/etc/containerd/conf.d/nvidia-shim.toml"},
		want:    Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName, Options: map[string]any{"SystemdCgroup": true}}, theDefault: "runc"},
	{name: "2.0 does not merge imports", files: map[string]string{testConfig: "v3-imports.toml"}, daemon: v2010, reg: Registration{Default: true},
		changed: []string{testConfig},
		want:    Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName, Options: map[string]any{"SystemdCgroup": true}}, theDefault: "nvidia"},
	{name: "1.6 is given the name", files: map[string]string{testConfig: "v2-1.7.toml"}, daemon: v1620,
		changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "runc"},
	{name: "1.6 is given the name, even out of PATH", files: map[string]string{testConfig: "v2-1.7.toml"}, daemon: v1620, reg: Registration{BinDir: "/opt/shim"},
		changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "runc"},
	{name: "1.7", files: map[string]string{testConfig: "v2-1.7.toml"}, daemon: v1735, reg: Registration{Default: true},
		changed: []string{testConfig},
		want:    Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName, Options: map[string]any{"SystemdCgroup": true}}, theDefault: "nvidia"},
	{name: "1.7 with an import that has the section", files: map[string]string{
		testConfig:                     "version = 2\nimports = [\"/etc/containerd/extra.toml\"]\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"a\"\n",
		"/etc/containerd/extra.toml":   "v2-1.7.toml",
		"/etc/containerd/ignored.toml": "v3-imports.toml",
	}, daemon: v1735, changed: []string{"/etc/containerd/extra.toml"},
		want: Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName, Options: map[string]any{"SystemdCgroup": true}}, theDefault: "runc"},
	{name: "an unknown version is served by the path", files: map[string]string{testConfig: "v2-1.7.toml"},
		changed: []string{testConfig},
		want:    Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName, Options: map[string]any{"SystemdCgroup": true}}, theDefault: "runc"},
	{name: "comments, odd formatting, no newline at the end", files: map[string]string{testConfig: "comments.toml"}, daemon: v242, reg: Registration{Default: true},
		changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "nvidia"},
	{name: "kind's node", files: map[string]string{testConfig: "kind.toml"}, daemon: v229,
		changed: []string{testConfig},
		want:    Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName, Options: map[string]any{"SystemdCgroup": true}}, theDefault: "runc"},
	{name: "without a version", files: map[string]string{testConfig: "no-version.toml"}, daemon: v242,
		changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "runc"},
	{name: "without a version, 1.7", files: map[string]string{testConfig: "no-version.toml"}, daemon: v1735, reg: Registration{Default: true},
		changed: []string{testConfig}, want: Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName}, theDefault: "nvidia"},
	{name: "without a version, 2.2, which does not migrate such sections", files: map[string]string{testConfig: "no-version.toml"}, daemon: v229, reg: Registration{Default: true},
		changed: []string{testConfig}, want: Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName}, theDefault: "nvidia"},
	{name: "a section of version 1, 2.2", files: map[string]string{testConfig: "[plugins.cri]\n  disable_apparmor = true\n"}, daemon: v229,
		changed: []string{testConfig}, want: Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName}, theDefault: "runc"},
	{name: "a section of version 1, 2.4", files: map[string]string{testConfig: "[plugins.cri.containerd]\n  default_runtime_name = \"runc\"\n"}, daemon: v242, reg: Registration{Default: true},
		changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "nvidia"},
	{name: "a section of version 2 without a version, 2.4", files: map[string]string{testConfig: "[plugins.\"io.containerd.grpc.v1.cri\"]\n  disable_apparmor = true\n"}, daemon: v242, reg: Registration{Default: true},
		changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "nvidia"},
	{name: "a section of version 1, 1.7", files: map[string]string{testConfig: "[plugins.cri]\n  disable_apparmor = true\n"}, daemon: v1735, reg: Registration{Default: true},
		changed: []string{testConfig}, want: Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName}, theDefault: "nvidia"},
	{name: "a value of several lines at the end, without the last line's end", files: map[string]string{testConfig: "version = 2\nrequired_plugins = [\n # none\n]"}, daemon: v242,
		changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "runc"},
	{name: "no file", daemon: v242, reg: Registration{Default: true},
		changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "nvidia"},
	{name: "no file, 1.7", daemon: v1735,
		changed: []string{testConfig}, want: Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName}, theDefault: "runc"},
	{name: "an empty file", files: map[string]string{testConfig: ""}, daemon: v242,
		changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "runc"},
	{name: "beside NVIDIA's toolkit", files: map[string]string{testConfig: "toolkit.toml"}, daemon: v242, reg: Registration{Handler: "nvidia-shim"},
		changed: []string{"/etc/containerd/conf.d/nvidia-shim.toml"}, want: Runtime{Type: RuntimeType}, theDefault: "nvidia"},
	{name: "in place of NVIDIA's toolkit", files: map[string]string{testConfig: "toolkit.toml"}, daemon: v242, reg: Registration{Replace: true},
		changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "nvidia"},
	{name: "below a default table without the key", files: map[string]string{testConfig: "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"native\"\n"},
		daemon: v242, reg: Registration{Default: true}, changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "nvidia"},
	{name: "the default as the last line, without its end", files: map[string]string{testConfig: "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\".containerd]\ndefault_runtime_name = \"runc\""},
		daemon: v242, reg: Registration{Default: true}, changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "nvidia"},
	{name: "lines that end like those of Windows", files: map[string]string{testConfig: "version = 3\r\n[plugins.\"io.containerd.cri.v1.runtime\".containerd]\r\n  default_runtime_name = \"runc\"\r\n"},
		daemon: v242, reg: Registration{Default: true}, changed: []string{testConfig}, want: Runtime{Type: RuntimeType}, theDefault: "nvidia"},
}

func prepare(t testing.TB, files map[string]string) string {
	t.Helper()
	texts := map[string][]byte{}
	for name, f := range files {
		texts[name] = []byte(f)
		if f != "" && !strings.Contains(f, "\n") {
			texts[name] = fixture(t, f)
		}
	}
	return tree(t, texts)
}

func (r Registration) filled() Registration {
	if r.Handler == "" {
		r.Handler = DefaultHandler
	}
	if r.BinDir == "" {
		r.BinDir = DefaultBinDir
	}
	return r
}

func TestInstallContainerd(t *testing.T) {
	for _, c := range registrations {
		t.Run(c.name, func(t *testing.T) {
			reg := c.reg.filled()
			h := Host{Root: prepare(t, c.files), Daemon: c.daemon}
			before := contents(t, h.Root)
			plan, err := installContainerd(h, testConfig, reg)
			if now := contents(t, h.Root); err != nil || !reflect.DeepEqual(now, before) || plan.Diff() == "" || len(plan.Notes) == 0 {
				t.Fatalf("the plan changed files, or says nothing: %+v %v", plan, err)
			}
			applied(t)(plan, err)
			after := contents(t, h.Root)
			checkKept(t, before, after, c.changed)
			checkRegistered(t, h, reg, c.want, c.theDefault)

			again := applied(t)(installContainerd(h, testConfig, reg))
			if now := contents(t, h.Root); again.Changed() || !reflect.DeepEqual(now, after) {
				t.Errorf("a second installation changes:\n%s", again.Diff())
			}
			applied(t)(uninstallContainerd(h, testConfig))
			if now := contents(t, h.Root); !reflect.DeepEqual(now, before) {
				t.Errorf("not as before:\n%v\nwant\n%v", now, before)
			}
		})
	}
}

// checkKept demands that only the named files changed, that each line of theirs is
// still there in its order, and that there is a back-up of what was.
func checkKept(t *testing.T, before, after map[string]string, changed []string) {
	t.Helper()
	for name, text := range before {
		now, ok := after[name]
		if !ok {
			t.Fatalf("%s is gone", name)
		}
		if !slices.Contains(changed, name) {
			if now != text {
				t.Errorf("%s changed", name)
			}
			continue
		}
		rest := now
		for line := range strings.Lines(text) {
			_, behind, ok := strings.Cut(rest, strings.TrimRight(line, "\r\n"))
			if !ok {
				t.Errorf("%s: the line %q is lost", name, line)
			}
			rest = behind
		}
		if after[name+BackupSuffix] != text {
			t.Errorf("the back-up of %s is %q", name, after[name+BackupSuffix])
		}
	}
	for _, name := range changed {
		if before[name] == after[name] {
			t.Errorf("%s did not change", name)
		}
	}
	// Each of them has a back-up, or is new itself.
	if len(after) != len(before)+len(changed) {
		t.Errorf("files: %v", slices.Sorted(maps.Keys(after)))
	}
}

func checkRegistered(t *testing.T, h Host, reg Registration, want Runtime, theDefault string) {
	t.Helper()
	c, err := ReadConfiguration(h, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Runtimes[reg.Handler]; !reflect.DeepEqual(got, want) {
		t.Errorf("runtime %+v, want %+v", got, want)
	}
	if c.Default != theDefault {
		t.Errorf("default %q, want %q", c.Default, theDefault)
	}
}

func TestUninstallKeepsWhatOthersChanged(t *testing.T) {
	h := Host{Root: prepare(t, map[string]string{testConfig: "v2-1.7.toml"}), Daemon: v1735}
	applied(t)(installContainerd(h, testConfig, Registration{Default: true}.filled()))
	name := filepath.Join(h.Root, testConfig)
	installed, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(b []byte) []byte {
		b = bytes.Replace(b, []byte("pause:3.8"), []byte("pause:3.10"), 1)
		return append(b, "\n[debug]\n  level = \"debug\"\n"...)
	}
	if err := os.WriteFile(name, edit(installed), 0o640); err != nil {
		t.Fatal(err)
	}
	// The operator's lines are behind ours now; nothing has to move for that.
	again, err := installContainerd(h, testConfig, Registration{Default: true}.filled())
	if err != nil || again.Changed() {
		t.Errorf("%v\n%s", err, again.Diff())
	}
	p := applied(t)(uninstallContainerd(h, testConfig))
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if want := edit(fixture(t, "v2-1.7.toml")); !bytes.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !strings.Contains(strings.Join(p.Notes, "\n"), "has been changed since") {
		t.Errorf("notes %q", p.Notes)
	}
	if backup, err := os.ReadFile(name + BackupSuffix); err != nil || !bytes.Equal(backup, fixture(t, "v2-1.7.toml")) {
		t.Errorf("back-up %q, %v", backup, err)
	}
}

// The last installation holds, and none leaves a trace of the one before; the back-up
// stays that of the first.
func TestInstallAgainWithAnotherChoice(t *testing.T) {
	h := Host{Root: prepare(t, map[string]string{testConfig: "v3-imports.toml"}), Daemon: v2010}
	before := contents(t, h.Root)
	steps := []struct {
		daemon Version
		reg    Registration
		want   Runtime
		def    string
	}{
		{v2010, Registration{Default: true}, Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName, Options: map[string]any{"SystemdCgroup": true}}, "nvidia"},
		{v2010, Registration{Handler: "gpu"}, Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName, Options: map[string]any{"SystemdCgroup": true}}, "runc"},
		// After an update of containerd the drop-in takes the place of the edit.
		{v242, Registration{}, Runtime{Type: RuntimeType}, "runc"},
		{v2010, Registration{Handler: "gpu", Default: true}, Runtime{Type: stockType, Path: "/usr/local/bin/" + ShimName, Options: map[string]any{"SystemdCgroup": true}}, "gpu"},
	}
	for i, s := range steps {
		h.Daemon = s.daemon
		applied(t)(installContainerd(h, testConfig, s.reg.filled()))
		checkRegistered(t, h, s.reg.filled(), s.want, s.def)
		c, err := ReadConfiguration(h, testConfig)
		if err != nil || len(c.Runtimes) != 2 {
			t.Errorf("step %d: %v %v", i, c.Runtimes, err)
		}
		backup, err := os.ReadFile(filepath.Join(h.Root, testConfig+BackupSuffix))
		if s.daemon == v2010 && (err != nil || !bytes.Equal(backup, fixture(t, "v3-imports.toml"))) {
			t.Errorf("step %d: the back-up is not the first state: %v\n%s", i, err, backup)
		}
	}
	applied(t)(uninstallContainerd(h, testConfig))
	if now := contents(t, h.Root); !reflect.DeepEqual(now, before) {
		t.Errorf("not as before: %v", now)
	}
}

func TestInstallContainerdRefuses(t *testing.T) {
	for _, c := range []struct {
		name, text string
		daemon     Version
		reg        Registration
		want       string
	}{
		{name: "a handler of another runtime, in the file to edit", text: "v2-1.7.toml", daemon: v1735, reg: Registration{Handler: "runc"}, want: `a runtime named "runc" already exists in /etc/containerd/config.toml ({"options":{"SystemdCgroup":true},"runtime_type":"io.containerd.runc.v2"}): use another --handler, or --replace`},
		{name: "a handler of another runtime, beside a drop-in", text: "toolkit.toml", daemon: v242, want: `"BinaryName":"/usr/bin/nvidia-container-runtime"`},
		{name: "broken TOML", text: "version = 2\n[plugins", daemon: v242, want: testConfig},
		{name: "a version that is not known", text: "version = 5\n", daemon: v242, want: "version 5"},
		{name: "a version that is no number", text: "version = \"2\"\n", daemon: v242, want: "version"},
		{name: "runtimes as an inline table", text: "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nruntimes = { runc = { runtime_type = \"io.containerd.runc.v2\" } }\n", daemon: v242, want: "by hand"},
		{name: "our block without its end", text: "version = 2\n" + blockBegin + "\n", daemon: v242, want: "has no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := Host{Root: prepare(t, map[string]string{testConfig: c.text}), Daemon: c.daemon}
			_, err := installContainerd(h, testConfig, c.reg.filled())
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q has no %q", err, c.want)
			}
		})
	}
}

func TestApplyLeavesChangedFilesAlone(t *testing.T) {
	h := Host{Root: prepare(t, map[string]string{testConfig: "v2-1.7.toml"}), Daemon: v1735}
	plan, err := installContainerd(h, testConfig, Registration{}.filled())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.Root, testConfig), []byte("version = 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := plan.Apply(); err == nil || !strings.Contains(err.Error(), "changed meanwhile") {
		t.Errorf("error %v", err)
	}
}

func TestInstallKeepsLinks(t *testing.T) {
	h := Host{Root: prepare(t, map[string]string{"/etc/real/config.toml": "v2-1.7.toml"}), Daemon: v1735}
	link := filepath.Join(h.Root, testConfig)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/real/config.toml", link); err != nil {
		t.Fatal(err)
	}
	applied(t)(installContainerd(h, testConfig, Registration{}.filled()))
	if to, err := os.Readlink(link); err != nil || to != "/etc/real/config.toml" {
		t.Errorf("link %q, %v", to, err)
	}
	if data, err := os.ReadFile(filepath.Join(h.Root, "/etc/real/config.toml")); err != nil || !bytes.Contains(data, []byte(ShimName)) {
		t.Errorf("%s %v", data, err)
	}
}

// daemons are the containerd programs that were built for tests.
func daemons(t *testing.T) []string {
	t.Helper()
	bin := os.Getenv("NVIDIA_SHIM_BIN")
	if bin == "" {
		bin = "../bin"
	}
	var programs []string
	for _, pattern := range []string{"tools/containerd", "daemons/*/containerd"} {
		found, err := filepath.Glob(filepath.Join(bin, pattern))
		if err != nil {
			t.Fatal(err)
		}
		programs = append(programs, found...)
	}
	return programs
}

// parsed is what one text says about runtimes.
func parsed(t *testing.T, text []byte) Configuration {
	t.Helper()
	f, err := parseFile("", text, Version{})
	if err != nil {
		t.Fatal(err)
	}
	return effective([]configFile{f})
}

// containerd's own reading of the result.
func TestContainerdReadsTheResult(t *testing.T) {
	all := daemons(t)
	if len(all) == 0 {
		t.Skip("SKIP: no bin/tools/containerd and bin/daemons: run `make tools daemons`")
	}
	for _, program := range all {
		version, err := DaemonVersion(t.Context(), "/", Containerd, program)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range registrations {
			if c.daemon.Known() && c.daemon.AtLeast(2, 0, 0) != version.AtLeast(2, 0, 0) {
				continue
			}
			t.Run(version.String()+"/"+c.name, func(t *testing.T) {
				reg := c.reg.filled()
				root := prepare(t, c.files)
				// The program sees the files at their real place.
				for name := range c.files {
					p := filepath.Join(root, name)
					data, err := os.ReadFile(p)
					if err != nil {
						t.Fatal(err)
					}
					data = regexp.MustCompile(`(['"])/etc/containerd/`).ReplaceAll(data, []byte("${1}"+root+"/etc/containerd/"))
					// containerd 1.7 leaves plugins out of its dump that are switched off.
					data = bytes.ReplaceAll(data, []byte(`["cri"]`), []byte(`[]`))
					if err := os.WriteFile(p, data, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				config := filepath.Join(root, testConfig)
				plan, err := installContainerd(Host{Daemon: version}, config, reg)
				applied(t)(plan, err)
				dump, err := exec.Command(program, "--config", config, "config", "dump").Output()
				if err != nil {
					t.Fatalf("config dump: %v", err)
				}
				got := parsed(t, dump)
				r := got.Runtimes[reg.Handler]
				byName := version.AtLeast(2, 4, 0) && reg.inPath() || !version.AtLeast(1, 7, 0)
				if !r.Ours() || (r.Type == RuntimeType) != byName || !byName && r.Path != reg.shim() || got.Default != c.theDefault {
					t.Errorf("handler %+v, default %q", r, got.Default)
				}
				if name, _ := r.Options["BinaryName"].(string); name != "" || got.Runtimes["runc"].Type == "" {
					t.Errorf("runc is lost, or its options are another runtime's: %v", got.Runtimes)
				}
			})
		}
	}
}
