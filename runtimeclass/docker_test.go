package runtimeclass

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
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
func dockerTree(t *testing.T, text string) Host {
	t.Helper()
	if text == "none" {
		return Host{Root: t.TempDir()}
	}
	return Host{Root: tree(t, map[string][]byte{DefaultDockerConfig: []byte(text)})}
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
	} {
		t.Run(c.name, func(t *testing.T) {
			h := dockerTree(t, c.text)
			before := contents(t, h.Root)
			for range 2 {
				applied(t)(installDocker(h, DefaultDockerConfig, c.reg.filled()))
				if got, err := os.ReadFile(filepath.Join(h.Root, DefaultDockerConfig)); err != nil || string(got) != c.want {
					t.Errorf("got %v\n%s\nwant\n%s", err, got, c.want)
				}
				if backup, ok := contents(t, h.Root)[DefaultDockerConfig+BackupSuffix]; ok != (c.text != "none") || ok && backup != before[DefaultDockerConfig] {
					t.Errorf("the original is kept as %q", backup)
				}
			}
			if plan, err := installDocker(h, DefaultDockerConfig, c.reg.filled()); err != nil || plan.Changed() {
				t.Errorf("a second installation: %v\n%s", err, plan.Diff())
			}
			applied(t)(uninstallDocker(h, DefaultDockerConfig))
			if now := contents(t, h.Root); !reflect.DeepEqual(now, before) {
				t.Errorf("not as before: %v, want %v", now, before)
			}
		})
	}
}

func TestInstallDockerRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}`: `a runtime named "nvidia" already exists in /etc/docker/daemon.json ({"path":"nvidia-container-runtime"}): use another --handler, or --replace`,
		`{"runtimes": []}`: `"runtimes" is not an object`,
		`[]`:               "cannot unmarshal array",
		`{"a": `:           "unexpected EOF",
		`{} {}`:            "there is more behind the JSON object",
	} {
		if _, err := installDocker(dockerTree(t, text), DefaultDockerConfig, Registration{}.filled()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

func TestUninstallDockerKeepsWhatOthersChanged(t *testing.T) {
	const before = `{"default-runtime": "crun", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}`
	h := dockerTree(t, before)
	for _, reg := range []Registration{{Replace: true}, {Default: true, Replace: true}} {
		applied(t)(installDocker(h, DefaultDockerConfig, reg.filled()))
	}
	name := filepath.Join(h.Root, DefaultDockerConfig)
	now, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, bytes.Replace(now, []byte("{"), []byte(`{"debug": true, `), 1), 0o640); err != nil {
		t.Fatal(err)
	}
	applied(t)(uninstallDocker(h, DefaultDockerConfig))
	got, err := h.read(DefaultDockerConfig)
	const want = "{\n  \"debug\": true,\n  \"default-runtime\": \"crun\",\n  \"runtimes\": {\n    \"nvidia\": {\n      \"path\": \"nvidia-container-runtime\"\n    }\n  }\n}\n"
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
	if backup, err := h.read(DefaultDockerConfig + BackupSuffix); err != nil || string(backup) != before {
		t.Errorf("the original is kept as %s, %v", backup, err)
	}
}

func TestUninstallDockerWithoutOurs(t *testing.T) {
	for _, text := range []string{`{}`, `{"runtimes": {"crun": {"path": "crun"}}}`, ``} {
		if plan, err := uninstallDocker(dockerTree(t, text), DefaultDockerConfig); err != nil || plan.Changed() {
			t.Errorf("%q: %v %v", text, err, plan)
		}
	}
}
