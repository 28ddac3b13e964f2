package runtimeclass

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
)

const ourDockerRuntime = `{
  "runtimes": {
    "nvidia": {
      "runtimeType": "io.containerd.nvidia.v2"
    }
  }
}
`

// dockerTree is a host with a daemon.json, unless text is "none".
func dockerTree(t testing.TB, text string) Host {
	t.Helper()
	h := Host{Root: t.TempDir()}
	if text != "none" {
		write(t, h.real(DefaultDockerConfig), text)
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
		{name: "no file", text: "none", want: ourDockerRuntime},
		{name: "an empty file", text: "", want: ourDockerRuntime},
		{name: "an empty object", text: "{}", want: ourDockerRuntime},
		{name: "unknown fields and odd numbers", text: "{\n\t\"zeta\": [1,  2],\n\t\"alpha\": {\"x\" : 1e3, \"y\": 12345678901234567890, \"z\": \"<&>\"}\n}",
			want: "{\n  \"alpha\": {\n    \"x\": 1e3,\n    \"y\": 12345678901234567890,\n    \"z\": \"<&>\"\n  },\n" + ourDockerRuntime[2:len(ourDockerRuntime)-3] + ",\n  \"zeta\": [\n    1,\n    2\n  ]\n}\n"},
		{name: "beside other runtimes, as the default", reg: Registration{Default: true},
			text: `{"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}`,
			want: "{\n  \"default-runtime\": \"nvidia\",\n  \"runtimes\": {\n    \"crun\": {\n      \"path\": \"/usr/bin/crun\"\n    },\n    \"nvidia\": {\n      \"runtimeType\": \"io.containerd.nvidia.v2\"\n    }\n  }\n}\n"},
		{name: "out of PATH", reg: Registration{BinDir: "/opt/s"}, text: "{}",
			want: strings.Replace(ourDockerRuntime, RuntimeType, "/opt/s/"+ShimName, 1)},
		{name: "in place of NVIDIA's toolkit", reg: Registration{Replace: true},
			text: `{"runtimes": {"nvidia": {"args": [],   "path": "nvidia-container-runtime"}}}`, want: ourDockerRuntime},
		{name: "in place of NVIDIA's toolkit as the default", reg: Registration{Replace: true},
			text: `{"default-runtime": "nvidia", "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}`,
			want: "{\n  \"default-runtime\": \"nvidia\",\n" + ourDockerRuntime[2:]},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, o := dockerTree(t, c.text), dockerOptions(c.reg)
			before := simtest.Contents(t, h.Root)
			if p := applied(t)(register(h, o)); p.Restart.String() != "systemctl reload docker" {
				t.Errorf("%s", p.Restart)
			}
			after := simtest.Contents(t, h.Root)
			if got := string(read(t, h.real(DefaultDockerConfig))); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			if backup, ok := after[DefaultDockerConfig+BackupSuffix]; ok != (c.text != "none") || backup != before[DefaultDockerConfig] {
				t.Errorf("the original is kept as %q", backup)
			}
			checkUndone(t, h, o, before)
		})
	}
}

func TestInstallDockerRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}`: `a runtime named "nvidia" already exists in /etc/docker/daemon.json ({"path":"nvidia-container-runtime"}): use another --handler, or --replace`,
		`{"runtimes": []}`: `"runtimes" is not an object`,
		`[]`:               "/etc/docker/daemon.json: line 1: unexpected JSON array",
		"{\n\"a\": ":       "/etc/docker/daemon.json: line 2: unexpected EOF",
		"{\n\"a\" 1}":      "/etc/docker/daemon.json: line 2: invalid character '1' after object key",
		`{} {}`:            "data after the JSON object",
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
		simtest.Check(t, os.Chmod(program, 0o755))
		h := dockerTree(t, "{}")
		var err error
		if h.Daemon, err = DaemonVersion(t.Context(), Docker, program); err != nil {
			t.Fatal(err)
		}
		if _, err := register(h, dockerOptions(Registration{})); (err != nil) != refused || refused && !strings.Contains(err.Error(), "ignores runtimeType") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// In a tree nothing is executed, so that the version is not known.
func TestInstallDockerSaysThatTheVersionIsNotKnown(t *testing.T) {
	h := dockerTree(t, "{}")
	for version, want := range map[Version]bool{{}: true, {Major: 29}: false} {
		h.Daemon = version
		p, err := register(h, dockerOptions(Registration{}))
		if got := strings.Contains(strings.Join(p.Notes, "\n"), "Docker before 24.0 would start containers without their GPUs"); err != nil || got != want {
			t.Errorf("%v: %v, %q", version, err, p.Notes)
		}
	}
}

// The link that --gpus needs is offered if NVIDIA's program is not there, and must not hide it.
func TestInstallDockerLooksForNVIDIAsCDIHook(t *testing.T) {
	const local, usr = "/usr/local/bin/nvidia-cdi-hook", "/usr/bin/nvidia-cdi-hook"
	for _, c := range []struct {
		link, file, needs, hides string
	}{
		{needs: "ln -s /bin/false " + local}, {file: usr}, {file: local}, {link: local}, {link: usr, file: local},
		{link: local, file: usr, hides: "the link " + local + " hides " + usr + ": remove it"},
	} {
		h, o := dockerTree(t, "{}"), dockerOptions(Registration{})
		write(t, h.real("/bin/false"), "")
		if c.file != "" {
			write(t, h.real(c.file), "")
		}
		if c.link != "" {
			check(t, errors.Join(os.MkdirAll(filepath.Dir(h.real(c.link)), 0o755), os.Symlink("/bin/false", h.real(c.link))))
		}
		for _, cdi := range []bool{true, false} {
			if o.CDI = nil; cdi {
				o.CDI = []Change{{}}
			}
			p, err := register(h, o)
			notes := strings.Join(p.Notes, "\n")
			if err != nil || strings.Contains(notes, "ln -s") != (cdi && c.needs != "") || !strings.Contains(notes, c.hides) || strings.Contains(notes, "hides") != (c.hides != "") {
				t.Errorf("%+v, CDI %v: %v, %s", c, cdi, err, notes)
			}
		}
	}
}

func TestUninstallDockerKeepsWhatOthersChanged(t *testing.T) {
	const before = `{"default-runtime": "crun", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}`
	h := dockerTree(t, before)
	for _, reg := range []Registration{{Replace: true}, {Default: true, Replace: true}} {
		applied(t)(register(h, dockerOptions(reg)))
	}
	now := string(read(t, h.real(DefaultDockerConfig)))
	write(t, h.real(DefaultDockerConfig), strings.Replace(now, "{", `{"debug": true, `, 1))
	// A reload leaves a removed runtime, and the default, as they were (moby's reloadPlatform).
	p := applied(t)(unregister(h, dockerOptions(Registration{})))
	if got, containers := p.Restart.String(), p.Restart.Containers(); got != "systemctl restart docker" || !strings.Contains(containers, "stop") {
		t.Errorf("%s; %s", got, containers)
	}
	const want = "{\n  \"debug\": true,\n  \"default-runtime\": \"crun\",\n  \"runtimes\": {\n    \"nvidia\": {\n      \"path\": \"nvidia-container-runtime\"\n    }\n  }\n}\n"
	if got := string(read(t, h.real(DefaultDockerConfig))); got != want {
		t.Errorf("got\n%s", got)
	}
	if backup := string(read(t, h.real(DefaultDockerConfig+BackupSuffix))); backup != before {
		t.Errorf("the original is kept as %s", backup)
	}
	if again, err := unregister(h, dockerOptions(Registration{})); err != nil || again.Changed() {
		t.Errorf("without a runtime of ours: %v %v", err, again)
	}
}
