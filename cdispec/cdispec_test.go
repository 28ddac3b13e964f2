package cdispec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
)

const early = `
cdiVersion: 0.6.0
kind: example.com/nic
containerEdits:
  env: ["WHERE=early"]
devices:
- name: eth0
  containerEdits:
    deviceNodes:
    - {path: /dev/a, type: c, major: 240, minor: 1, permissions: rwm}
    - {path: /dev/b, type: c, major: 240, minor: 2, permissions: r}
    - {path: /dev/c, type: c, major: 240, minor: 3, permissions: m}
- name: eth1
  containerEdits:
    env: ["ONLY=early"]
`

func specDirs(t *testing.T, texts ...string) (dirs []string) {
	t.Helper()
	for _, text := range texts {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "nic.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

func TestRulesNeverAllowMknod(t *testing.T) {
	e, err := Find(bundle.CDIRequest{Dirs: specDirs(t, early), Names: []string{"example.com/nic=eth0"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range e.Rules {
		got = append(got, r.Access)
	}
	if strings.Join(got, " ") != "rw r" || len(e.Devices) != 3 {
		t.Errorf("rules %q for %d nodes", got, len(e.Devices))
	}
}

func TestALaterDirectoryGoesBeforeAnEarlierOne(t *testing.T) {
	dirs := specDirs(t, early, strings.ReplaceAll(strings.ReplaceAll(early, "eth1", "eth2"), "early", "late"))
	for name, want := range map[string]string{"eth0": "WHERE=late", "eth1": "WHERE=early ONLY=early"} {
		e, err := Find(bundle.CDIRequest{Dirs: dirs, Names: []string{"example.com/nic=" + name}})
		if err != nil || strings.Join(e.Env, " ") != want {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
}

func TestAnUnknownDeviceNamesABrokenSpecification(t *testing.T) {
	dirs := specDirs(t, "kind: [")
	e, err := Find(bundle.CDIRequest{Dirs: append(dirs, "/nonexistent"), Names: []string{"example.com/nic=eth0"}})
	if err != nil || !strings.Contains(e.Unknown, dirs[0]+"/nic.yaml cannot be used") || strings.Contains(e.Unknown, "\n") {
		t.Errorf("%+v, %v", e, err)
	}
}
