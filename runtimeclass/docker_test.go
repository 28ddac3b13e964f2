package runtimeclass

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

const ourDockerRuntime = `{
  "runtimes": {
    "nvidia": {
      "runtimeType": "io.containerd.nvidia.v2"
    }
  }
}
`

// dockerTree returns a host with a daemon.json, unless text is "none".
func dockerTree(t testing.TB, text string) Host {
	t.Helper()
	h := Host{Tree: hosttree.Tree{Root: t.TempDir()}}
	if text != "none" {
		write(t, h.Real(DefaultDockerConfig), text)
	}
	return h
}

func dockerOptions(r Registration) Options {
	return Options{Target: Docker, ConfigFile: DefaultDockerConfig, Registration: r.filled()}
}

func TestInstallDocker(t *testing.T) {
	for _, c := range []struct {
		name, text string
		reg        Registration
		want       string
	}{
		{name: "an empty file", text: "", want: ourDockerRuntime},
		{name: "an empty object", text: "{}", want: ourDockerRuntime},
		{name: "unknown fields and odd numbers", text: "{\n\t\"zeta\": [1,  2],\n\t\"alpha\": {\"x\" : 1e3, \"y\": 12345678901234567890, \"z\": \"<&>\"}\n}",
			want: "{\n  \"alpha\": {\n    \"x\": 1e3,\n    \"y\": 12345678901234567890,\n    \"z\": \"<&>\"\n  },\n" + ourDockerRuntime[2:len(ourDockerRuntime)-3] + ",\n  \"zeta\": [\n    1,\n    2\n  ]\n}\n"},
		{name: "beside other runtimes, as the default", reg: Registration{Default: true},
			text: `{"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}`,
			want: "{\n  \"default-runtime\": \"nvidia\",\n  \"runtimes\": {\n    \"crun\": {\n      \"path\": \"/usr/bin/crun\"\n    },\n    \"nvidia\": {\n      \"runtimeType\": \"io.containerd.nvidia.v2\"\n    }\n  }\n}\n"},
		{name: "out of PATH", reg: Registration{BinDir: "/opt/s"}, text: "{}",
			want: strings.Replace(ourDockerRuntime, RuntimeType, "/opt/s/"+version.Shim, 1)},
		{name: "in place of NVIDIA's toolkit", reg: Registration{Replace: true},
			text: `{"runtimes": {"nvidia": {"args": [],   "path": "nvidia-container-runtime"}}}`, want: ourDockerRuntime},
		{name: "in place of NVIDIA's toolkit as the default", reg: Registration{Replace: true},
			text: `{"default-runtime": "nvidia", "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}`,
			want: "{\n  \"default-runtime\": \"nvidia\",\n" + ourDockerRuntime[2:]},
		{name: "a runtime of ours that was registered by hand, as the default", reg: Registration{Default: true},
			text: `{"runtimes": {"nvidia": {"runtimeType": "io.containerd.nvidia.v2"}}}`,
			want: "{\n  \"default-runtime\": \"nvidia\",\n" + ourDockerRuntime[2:]},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, o := dockerTree(t, c.text), dockerOptions(c.reg)
			before := testtree.Contents(t, h.Root)
			if p := applied(t)(register(h, o)); p.Restart.String() != "systemctl reload docker" {
				t.Errorf("%s", p.Restart)
			}
			after := testtree.Contents(t, h.Root)
			if got := string(read(t, h.Real(DefaultDockerConfig))); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			if backup, ok := after[DefaultDockerConfig+hosttree.BackupSuffix]; !ok || backup != before[DefaultDockerConfig] {
				t.Errorf("the original is kept as %q", backup)
			}
			checkUndone(t, h, o, before)
		})
	}
}

// The default that an installation set stays until the operator removes it, for which a reload is
// not enough, or sets another one.
func TestInstallDockerKeepsTheDefault(t *testing.T) {
	for text, other := range map[string]string{"none": "", "{}": "", `{"default-runtime": "crun", "runtimes": {"crun": {"path": "crun"}}}`: "crun"} {
		h := dockerTree(t, text)
		before := testtree.Contents(t, h.Root)
		restart := "reload"
		if other == "" {
			restart = "restart"
		}
		for i, s := range []struct {
			reg           Registration
			drop          bool
			want, restart string
		}{
			{Registration{}, false, other, "reload"},
			{Registration{Default: true}, false, "nvidia", "reload"},
			{Registration{Handler: "gpu"}, false, "nvidia", "reload"},
			{Registration{}, false, "nvidia", "reload"},
			{Registration{Handler: "gpu", Default: true}, false, "gpu", "reload"},
			{Registration{}, true, other, restart},
			{Registration{}, false, other, "reload"},
			{Registration{Default: true}, false, "nvidia", "reload"},
		} {
			o := withDocker(options(t))
			o.Registration, o.DropDefault = s.reg.filled(), s.drop
			p := applied(t)(Install(h, o))
			_, config, err := h.readJSON(DefaultDockerConfig)
			check(t, err)
			if got, _ := config["default-runtime"].(string); got != s.want || p.Restart.Verb != s.restart {
				t.Errorf("%s, step %d: default %q, want %q; %s", text, i, got, s.want, p.Restart)
			}
		}
		uninstall(t, h, withDocker(options(t)))
		if now := testtree.Contents(t, h.Root); !reflect.DeepEqual(now, before) {
			t.Errorf("not as before: %v", now)
		}
	}
}

// The record says that install made the file.
func TestInstallDockerMakesTheFile(t *testing.T) {
	h, o := dockerTree(t, "none"), withDocker(options(t))
	before := testtree.Contents(t, h.Root)
	for range 2 {
		applied(t)(Install(h, o))
		if got := string(read(t, h.Real(DefaultDockerConfig))); got != ourDockerRuntime || h.Exists(DefaultDockerConfig+hosttree.BackupSuffix) {
			t.Errorf("got\n%s", got)
		}
	}
	uninstall(t, h, o)
	if now := testtree.Contents(t, h.Root); !reflect.DeepEqual(now, before) {
		t.Errorf("not as before: %v", now)
	}
}

func TestInstallDockerRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}`: `a runtime named "nvidia" already exists in /etc/docker/daemon.json ({"path":"nvidia-container-runtime"}): use another --handler, or --replace`,
		"{\n\"runtimes\": []}": "/etc/docker/daemon.json: line 2: runtimes: unexpected JSON array",
		`[]`:                   "/etc/docker/daemon.json: line 1: unexpected JSON array",
		"{\n\"a\": ":           "/etc/docker/daemon.json: line 2: unexpected EOF",
		"{\n\"a\" 1}":          "/etc/docker/daemon.json: line 2: invalid character '1' after object key",
		"{\n}\n\n{}":           "/etc/docker/daemon.json: line 4: data after the JSON object",
		"{}\nx":                "/etc/docker/daemon.json: line 2: data after the JSON object",
	} {
		if _, err := register(dockerTree(t, text), dockerOptions(Registration{})); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

func TestInstallDockerRefusesVersionsThatIgnoreIt(t *testing.T) {
	for text, refused := range map[string]bool{
		"Docker version 20.10.24+dfsg1, build 297e128": true,
		"Docker version 23.0.6, build ef23cbc":         true,
		"Docker version 24.0.0, build 98fdcd7":         false,
		"Docker version 29.9.3, build unknown":         false,
	} {
		program := filepath.Join(t.TempDir(), "dockerd")
		write(t, program, "#!/bin/sh\necho '"+text+"'\n")
		testtree.Check(t, os.Chmod(program, 0o755))
		h := dockerTree(t, "{}")
		var err error
		if h.Daemon, err = DaemonVersion(t.Context(), program); err != nil {
			t.Fatal(err)
		}
		if _, err := register(h, dockerOptions(Registration{})); (err != nil) != refused || refused && !strings.Contains(err.Error(), "ignores runtimeType") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What a version of Docker can do with a CDI specification is set up, and the rest is refused.
func TestInstallDockerSetsUpWhatTheVersionCanDo(t *testing.T) {
	const hook = "/usr/bin/" + RuntimeHookName
	for _, c := range []struct {
		version string
		flag    bool
		text    string
		hook    string
		feature bool   // set by install
		err     string // of it
	}{
		{version: "24.0.9", err: "dockerd 24.0.9 has no CDI"},
		{version: "25.0.0", feature: true},
		{version: "26.1.5", flag: true, err: "dockerd 26.1.5 does not resolve --gpus by CDI"},
		{version: "26.1.5", flag: true, hook: hook, feature: true},
		{version: "28.1.1", feature: true, text: `{"features": {"containerd-snapshotter": true}, "debug": true}`},
		{version: "28.1.1", text: `{"features": {"cdi": true}}`},
		{version: "28.1.1", text: `{"features": {"cdi": false}}`, err: "features.cdi is false in " + DefaultDockerConfig},
		{version: "28.1.1", text: `{"features": 1}`, err: "features is not a JSON object"},
		{version: "28.2.0"},
		{version: "28.5.2", flag: true, err: "dockerd 28.5.2 does not resolve --gpus"},
		{version: "29.0.0", flag: true},
		{version: "29.0.0", text: `{"features": {"cdi": false}}`, err: "features.cdi is false"},
	} {
		h, o := dockerTree(t, cmp.Or(c.text, "none")), withDocker(options(t))
		var err error
		h.Daemon, err = semver.Parse("Docker version " + c.version + ", build 1")
		check(t, err)
		if c.hook != "" {
			write(t, h.Real(c.hook), "")
		}
		before := testtree.Contents(t, h.Root)
		o.GPUsFlag, o.PrepareUnit = c.flag, false
		o.CDI = []hosttree.Change{{Kind: hosttree.Generated, Path: "/etc/cdi/nvidia.yaml", After: []byte("devices: []\n")}}
		p, err := Install(h, o)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: error %v", c, err)
			}
			continue
		}
		applied(t)(p, err)
		if c.feature != (p.Restart.Verb == "restart") && !c.flag {
			t.Errorf("%+v: %s", c, p.Restart)
		}
		o.CDI, o.GPUsFlag = nil, false
		if again := applied(t)(Install(h, o)); again.Changed() {
			t.Errorf("%+v: again\n%s", c, again.Diff())
		}
		_, config, err := h.readJSON(DefaultDockerConfig)
		check(t, err)
		if got := tomledit.Table(config, "features")["cdi"] == true; got != (c.feature || strings.Contains(c.text, "cdi")) {
			t.Errorf("%+v: features %v", c, config["features"])
		}
		uninstall(t, h, o)
		if now := testtree.Contents(t, h.Root); !reflect.DeepEqual(now, before) {
			t.Errorf("%+v: not as before: %v", c, now)
		}
	}
}

// A snap and a rootless dockerd do not read /etc/docker/daemon.json.
func TestInstallDockerRefusesTheSnapAndARootlessOne(t *testing.T) {
	const snap, rootless, system = "/var/snap/docker/current/config/daemon.json", "/run/user/1000/docker.sock", "/usr/bin/dockerd"
	for _, c := range []struct {
		files  []string
		config string
		want   string // of the error; "" for none
	}{
		{files: []string{snap}, want: "Docker is a snap"},
		{files: []string{snap, "/run/docker.sock"}, want: "Docker is a snap"},
		{files: []string{snap, system}},
		{files: []string{snap, system}, config: snap, want: "Docker is a snap"},
		{files: []string{system, rootless}, want: "Docker is rootless (" + rootless + ")"},
		{files: []string{system, rootless, "/run/docker.sock"}},
		{files: []string{system, rootless}, config: "/opt/docker.json"},
		{files: []string{system, "/run/docker.sock"}, config: "/home/a/.config/docker/daemon.json", want: "is read by a rootless Docker"},
	} {
		h, o := dockerTree(t, "{}"), dockerOptions(Registration{})
		for _, name := range c.files {
			write(t, h.Real(name), "{}")
		}
		o.ConfigFile = cmp.Or(c.config, o.ConfigFile)
		if _, err := register(h, o); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v", c, err)
		}
	}
}

// dockerd ends if its command line and its file both name a default.
func TestInstallDockerRefusesASecondDefault(t *testing.T) {
	for _, command := range []string{"/usr/bin/dockerd --default-runtime runc", "/usr/bin/dockerd -H fd:// --default-runtime=runc", "/usr/bin/dockerd --default-runtime"} {
		_, proc := hostWith(t, nil, []string{command}, nil)
		h := dockerTree(t, "{}")
		if found := Find(h, proc, Docker); len(found) == 1 {
			h.Default = found[0].Default
		}
		for _, byDefault := range []bool{false, true} {
			_, err := register(h, dockerOptions(Registration{Default: byDefault}))
			if want := byDefault && strings.Contains(command, "runc"); (err != nil) != want || want && !strings.Contains(err.Error(), "--default-runtime runc") {
				t.Errorf("%s, %v: %v", command, byDefault, err)
			}
		}
	}
}

// Nothing in a tree is executed, so the version is unknown.
func TestInstallDockerSaysThatTheVersionIsNotKnown(t *testing.T) {
	h := dockerTree(t, "{}")
	for version, want := range map[semver.Version]bool{{}: true, {Major: 29}: false} {
		h.Daemon = version
		p, err := register(h, dockerOptions(Registration{}))
		if got := strings.Contains(strings.Join(p.Notes, "\n"), "dockerd's version is unknown (set it with --docker-version): Docker before 24.0 would start containers without their GPUs"); err != nil || got != want {
			t.Errorf("%v: %v, %q", version, err, p.Notes)
		}
	}
}

// The link that dockerd looks for is created if the operator asks for it, and never over or next to
// NVIDIA's program.
func TestInstallDockerLooksForNVIDIAsCDIHook(t *testing.T) {
	const usr, legacy = "/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-container-runtime-hook"
	for _, c := range []struct {
		name, file string // of NVIDIA's
		to         string // the target of an existing link
		note       string // without the flag; only with a CDI specification if it names the flag
		flag, err  string // the note and the error with the flag
	}{
		{name: "nothing", note: "also needs --gpus-flag"},
		{name: "NVIDIA's", file: usr, flag: "places no link: " + usr},
		{name: "NVIDIA's in place of the link", file: cdiHookLink, flag: "places no link: " + cdiHookLink},
		{name: "NVIDIA's of old", file: legacy, flag: "places no link: " + legacy},
		{name: "NVIDIA's by a link", to: "/bin/toolkit", flag: "places no link: " + cdiHookLink},
		{name: "the link of earlier advice", to: "/bin/false", note: "hides the program of NVIDIA's toolkit: remove it",
			err: cdiHookLink + " leads to /bin/false: remove it first"},
		{name: "that link over NVIDIA's", to: "/bin/false", file: usr, note: "remove it", err: "leads to /bin/false: remove it first"},
		{name: "a link to nothing", to: "/opt/gone", err: "leads to /opt/gone: remove it first"},
		{name: "our link, and NVIDIA's behind it", to: version.Ctl, file: usr, flag: "places no link: " + usr},
	} {
		h, o := dockerTree(t, "{}"), dockerOptions(Registration{})
		for _, name := range []string{"/bin/false", "/bin/toolkit", c.file} {
			if name != "" {
				write(t, h.Real(name), "")
			}
		}
		if c.to != "" {
			check(t, errors.Join(os.MkdirAll(filepath.Dir(h.Real(cdiHookLink)), 0o755), os.Symlink(c.to, h.Real(cdiHookLink))))
		}
		for _, cdi := range []bool{true, false} {
			if o.CDI = nil; cdi {
				o.CDI = []hosttree.Change{{}}
			}
			p, err := register(h, o)
			notes := strings.Join(p.Notes, "\n")
			says := cdi || !strings.Contains(c.note, "--gpus-flag")
			if err != nil || says && !strings.Contains(notes, c.note) || !(says && c.note != "") && strings.Contains(notes, "hook") || len(p.changing(hosttree.Link)) > 0 {
				t.Errorf("%s, CDI %v: %v, %s", c.name, cdi, err, notes)
			}
		}
		o.GPUsFlag = true
		p, err := register(h, o)
		notes := strings.Join(p.Notes, "\n")
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) || !strings.Contains(notes, c.flag) ||
			(len(p.changing(hosttree.Link)) > 0) != (c.flag == "" && c.err == "") {
			t.Errorf("%s with --gpus-flag: %v, %s, %v", c.name, err, notes, p.changing(hosttree.Link))
		}
	}
}

// The link is in the record: a second installation changes nothing, and uninstall removes it.
func TestTheLinkForTheGPUsFlag(t *testing.T) {
	for dir, to := range map[string]string{DefaultBinDir: version.Ctl, PackageBinDir: "/usr/bin/" + version.Ctl, "/opt/x": "/opt/x/" + version.Ctl} {
		h := dockerTree(t, "{}")
		before := testtree.Contents(t, h.Root)
		o := options(t)
		o.Target, o.ConfigFile, o.PrepareUnit, o.Registration.BinDir = Docker, DefaultDockerConfig, false, dir
		applied(t)(Install(h, o))
		o.GPUsFlag = true
		p := applied(t)(Install(h, o))
		if got := changedFiles(p); !slices.Equal(got, []string{cdiHookLink, RecordPath}) || !p.Changed() || p.Restart.String() != "systemctl restart docker" {
			t.Errorf("%s: changes %v, %s", dir, got, p.Restart)
		}
		if got, err := os.Readlink(h.Real(cdiHookLink)); err != nil || got != to || !h.Exists(cdiHookLink) {
			t.Errorf("%s: the link leads to %q, %v", dir, got, err)
		}
		for _, flag := range []bool{true, false} {
			o.GPUsFlag = flag
			if p := applied(t)(Install(h, o)); len(changedFiles(p)) > 0 || p.Changed() || strings.Contains(strings.Join(p.Notes, ""), "gpus") {
				t.Errorf("%s: again: %v %q", dir, changedFiles(p), p.Notes)
			}
		}
		p = applied(t)(Uninstall(h, o))
		_, err := p.RemovePrograms(procfs.FS(t.TempDir()))
		if now := testtree.Contents(t, h.Root); err != nil || !reflect.DeepEqual(now, before) || !slices.Contains(p.Removed(), cdiHookLink) {
			t.Errorf("%s: %v, after uninstall: %v", dir, err, now)
		}
	}
}

// The programs may move, for example to a package's directory. Our link stays if another program
// has changed it.
func TestUninstallRemovesOnlyOurLinkForTheGPUsFlag(t *testing.T) {
	for _, theirs := range []bool{false, true} {
		h, o := dockerTree(t, "{}"), options(t)
		o.Target, o.ConfigFile, o.PrepareUnit, o.GPUsFlag = Docker, DefaultDockerConfig, false, true
		applied(t)(Install(h, o))
		o.Registration.BinDir = PackageBinDir
		applied(t)(Install(h, o))
		write(t, h.Real("/etc/cdi/nvidia.yaml"), "path: "+cdiHookLink+"\n")
		write(t, h.Real("/etc/cdi/other.yaml"), "path: /usr/bin/other\n")
		if theirs {
			check(t, errors.Join(os.Remove(h.Real(cdiHookLink)), os.Symlink("/usr/bin/nvidia-ctk", h.Real(cdiHookLink))))
		}
		p := applied(t)(Uninstall(h, o))
		_, err := os.Lstat(h.Real(cdiHookLink))
		notes := strings.Join(p.Notes, "\n")
		if (err == nil) != theirs || strings.Contains(notes, "was changed") != theirs ||
			strings.Contains(notes, "/etc/cdi/nvidia.yaml runs "+cdiHookLink+", which is removed") == theirs || strings.Contains(notes, "other.yaml") {
			t.Errorf("another's %v: %v, %s", theirs, err, notes)
		}
	}
}

// A file that is created after the plan was made stays.
func TestTheLinkForTheGPUsFlagReplacesNoFile(t *testing.T) {
	h, o := dockerTree(t, "{}"), dockerOptions(Registration{})
	o.GPUsFlag = true
	p, err := register(h, o)
	check(t, err)
	write(t, h.Real(cdiHookLink), "NVIDIA's")
	if err := p.Apply(); err == nil || string(read(t, h.Real(cdiHookLink))) != "NVIDIA's" {
		t.Errorf("%v, %s", err, read(t, h.Real(cdiHookLink)))
	}
}

func TestUninstallDockerKeepsWhatOthersChanged(t *testing.T) {
	const before = `{"default-runtime": "crun", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}`
	h := dockerTree(t, before)
	for _, reg := range []Registration{{Replace: true}, {Default: true, Replace: true}} {
		applied(t)(register(h, dockerOptions(reg)))
	}
	now := string(read(t, h.Real(DefaultDockerConfig)))
	write(t, h.Real(DefaultDockerConfig), strings.Replace(now, "{", `{"debug": true, `, 1))
	// A reload keeps a removed runtime and a removed default (moby's reloadPlatform).
	p := applied(t)(unregister(h, dockerOptions(Registration{})))
	if got, containers := p.Restart.String(), p.Restart.Containers(); got != "systemctl restart docker" || !strings.Contains(containers, "stop") {
		t.Errorf("%s; %s", got, containers)
	}
	const want = "{\n  \"debug\": true,\n  \"default-runtime\": \"crun\",\n  \"runtimes\": {\n    \"nvidia\": {\n      \"path\": \"nvidia-container-runtime\"\n    }\n  }\n}\n"
	if got := string(read(t, h.Real(DefaultDockerConfig))); got != want {
		t.Errorf("got\n%s", got)
	}
	if backup := string(read(t, h.Real(DefaultDockerConfig+hosttree.BackupSuffix))); backup != before {
		t.Errorf("the original is kept as %s", backup)
	}
	if again, err := unregister(h, dockerOptions(Registration{})); err != nil || again.Changed() {
		t.Errorf("without a runtime of ours: %v %v", err, again)
	}
}
