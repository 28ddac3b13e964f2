package runtimeclass

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestInstallDocker(t *testing.T) {
	for _, c := range []struct {
		name, text string
		none       bool
		reg        Registration
		want       string
		err        error
	}{
		{name: "no file", none: true, want: "{\n  \"runtimes\": {\n    \"nvidia\": {\n      \"runtimeType\": \"io.containerd.nvidia.v2\"\n    }\n  }\n}\n"},
		{name: "an empty file", text: "", want: "{\n  \"runtimes\": {\n    \"nvidia\": {\n      \"runtimeType\": \"io.containerd.nvidia.v2\"\n    }\n  }\n}\n"},
		{name: "unknown fields, their order and tabs stay",
			text: "{\n\t\"zeta\": [1,  2],\n\t\"exec-opts\": [\"native.cgroupdriver=systemd\"],\n\t\"alpha\": {\"x\" : 1e3}\n}",
			want: "{\n\t\"zeta\": [1,  2],\n\t\"exec-opts\": [\"native.cgroupdriver=systemd\"],\n\t\"alpha\": {\"x\" : 1e3},\n\t\"runtimes\": {\n\t\t\"nvidia\": {\n\t\t\t\"runtimeType\": \"io.containerd.nvidia.v2\"\n\t\t}\n\t}\n}"},
		{name: "in one line", text: `{"debug": true}`, want: `{"debug": true, "runtimes": {"nvidia":{"runtimeType":"io.containerd.nvidia.v2"}}}`},
		{name: "an empty object", text: "{}\n", want: "{\n  \"runtimes\": {\n    \"nvidia\": {\n      \"runtimeType\": \"io.containerd.nvidia.v2\"\n    }\n  }\n}\n"},
		{name: "beside other runtimes, as the default", reg: Registration{Default: true},
			text: "{\n    \"default-runtime\": \"crun\",\n    \"runtimes\": {\n        \"crun\": {\"path\": \"/usr/bin/crun\"}\n    }\n}\n",
			want: "{\n    \"default-runtime\": \"nvidia\",\n    \"runtimes\": {\n        \"crun\": {\"path\": \"/usr/bin/crun\"},\n        \"nvidia\": {\n            \"runtimeType\": \"io.containerd.nvidia.v2\"\n        }\n    }\n}\n"},
		{name: "out of PATH", reg: Registration{BinDir: "/opt/s"}, text: "{}", want: "{\n  \"runtimes\": {\n    \"nvidia\": {\n      \"runtimeType\": \"/opt/s/containerd-shim-nvidia-v2\"\n    }\n  }\n}"},
		{name: "NVIDIA's toolkit has the name", text: `{"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}`, err: ErrTaken},
		{name: "in place of NVIDIA's toolkit", reg: Registration{Replace: true},
			text: `{"runtimes": {"nvidia": {"args": [],   "path": "nvidia-container-runtime"}}}`,
			want: `{"runtimes": {"nvidia": {"runtimeType":"io.containerd.nvidia.v2"}}}`},
		{name: "runtimes is no object", text: `{"runtimes": []}`, err: errors.ErrUnsupported},
		{name: "no object", text: `[]`, err: errors.ErrUnsupported},
		{name: "cut off", text: `{"a": `, err: errors.ErrUnsupported},
		{name: "something behind", text: `{} {}`, err: errors.ErrUnsupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string][]byte{DefaultDockerConfig: []byte(c.text)}
			if c.none {
				files = nil
			}
			h := Host{Root: tree(t, files)}
			before := contents(t, h.Root)
			plan, err := InstallDocker(h, DefaultDockerConfig, c.reg.filled())
			if c.err != nil {
				if err == nil || errors.Is(c.err, ErrTaken) != errors.Is(err, ErrTaken) {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := plan.Apply(); err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(h.Root, DefaultDockerConfig)
			got, err := os.ReadFile(name)
			if err != nil || string(got) != c.want {
				t.Errorf("got %v\n%s\nwant\n%s", err, got, c.want)
			}
			again, err := InstallDocker(h, DefaultDockerConfig, c.reg.filled())
			if err != nil || again.Changed() {
				t.Errorf("a second installation: %v\n%s", err, again.Diff())
			}
			if err := again.Apply(); err != nil {
				t.Fatal(err)
			}
			uninstallDocker(t, h)
			if now := contents(t, h.Root); !reflect.DeepEqual(now, before) {
				t.Errorf("not as before: %v, want %v", now, before)
			}
		})
	}
}

func uninstallDocker(t *testing.T, h Host) {
	t.Helper()
	plan, err := UninstallDocker(h, DefaultDockerConfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Apply(); err != nil {
		t.Fatal(err)
	}
}

func TestUninstallDockerKeepsWhatOthersChanged(t *testing.T) {
	const before = `{"default-runtime": "crun", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}`
	h := Host{Root: tree(t, map[string][]byte{DefaultDockerConfig: []byte(before)})}
	for _, reg := range []Registration{{Replace: true}, {Default: true, Replace: true}} {
		plan, err := InstallDocker(h, DefaultDockerConfig, reg.filled())
		if err != nil {
			t.Fatal(err)
		}
		if err := plan.Apply(); err != nil {
			t.Fatal(err)
		}
	}
	if backup, err := h.read(DefaultDockerConfig + BackupSuffix); err != nil || string(backup) != before {
		t.Errorf("the back-up is not the first state: %v %s", err, backup)
	}
	name := filepath.Join(h.Root, DefaultDockerConfig)
	now, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	now = bytes.Replace(now, []byte("{"), []byte(`{"debug": true, `), 1)
	if err := os.WriteFile(name, now, 0o640); err != nil {
		t.Fatal(err)
	}
	uninstallDocker(t, h)
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(got, &m); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"debug": true, "default-runtime": "crun", "runtimes": map[string]any{"nvidia": map[string]any{"path": "nvidia-container-runtime"}}}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("got %s", got)
	}
}

func TestUninstallDockerWithoutOurs(t *testing.T) {
	for _, text := range []string{`{}`, `{"runtimes": {"crun": {"path": "crun"}}}`, ``} {
		h := Host{Root: tree(t, map[string][]byte{DefaultDockerConfig: []byte(text)})}
		plan, err := UninstallDocker(h, DefaultDockerConfig)
		if err != nil || plan.Changed() || !strings.Contains(strings.Join(plan.Notes, ""), "nothing") {
			t.Errorf("%q: %v %v", text, err, plan)
		}
	}
}
