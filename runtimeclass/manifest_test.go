package runtimeclass

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestManifest(t *testing.T) {
	got, err := Manifest{
		Name: "nvidia", Handler: "nvidia", NodeSelector: map[string]string{"nvidia.com/gpu.present": "true", "a": "1"},
		Tolerations: []Toleration{{Key: "nvidia.com/gpu", Effect: "NoSchedule"}, {Key: "pool", Value: "gpu"}},
		Overhead:    map[string]string{"memory": "16Mi", "cpu": "10m"},
	}.YAML()
	if err != nil {
		t.Fatal(err)
	}
	const want = `apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: "nvidia"
handler: "nvidia"
overhead:
  podFixed:
    "cpu": "10m"
    "memory": "16Mi"
scheduling:
  nodeSelector:
    "a": "1"
    "nvidia.com/gpu.present": "true"
  tolerations:
  - key: "nvidia.com/gpu"
    operator: Exists
    effect: NoSchedule
  - key: "pool"
    operator: Equal
    value: "gpu"
`
	if string(got) != want {
		t.Errorf("got\n%s", got)
	}
	got, err = Manifest{Name: "n", Handler: "nvidia"}.YAML()
	if err != nil || string(got) != "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata:\n  name: \"n\"\nhandler: \"nvidia\"\n" {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestManifestRefuses(t *testing.T) {
	ok := Manifest{Name: "n", Handler: "n"}
	for name, change := range map[string]func(*Manifest){
		"no name":              func(m *Manifest) { *m = Manifest{} },
		"a name with capitals": func(m *Manifest) { m.Name = "N" },
		"a handler with dots":  func(m *Manifest) { m.Handler = "a.b" },
		"a newline in a label": func(m *Manifest) { m.NodeSelector = map[string]string{"a": "b\nc"} },
		"a label without key":  func(m *Manifest) { m.NodeSelector = map[string]string{"": "b"} },
		"an effect":            func(m *Manifest) { m.Tolerations = []Toleration{{Key: "a", Effect: "Never"}} },
		"a taint's key":        func(m *Manifest) { m.Tolerations = []Toleration{{Key: "a b"}} },
		"a quantity":           func(m *Manifest) { m.Overhead = map[string]string{"memory": "16 MB"} },
	} {
		m := ok
		change(&m)
		if text, err := m.YAML(); err == nil {
			t.Errorf("%s: accepted\n%s", name, text)
		}
	}
}

func TestVersion(t *testing.T) {
	for _, c := range []struct {
		text    string
		want    Version
		distrib bool
	}{
		{"containerd github.com/containerd/containerd/v2 v2.4.2 \n", v242, false},
		{"containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da", Version{Major: 1, Minor: 7, Patch: 27}, false},
		{"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1", Version{1, 6, 20, "~ds1"}, true},
		{"containerd github.com/k3s-io/containerd v2.1.5-k3s1 fcd43222", Version{2, 1, 5, "-k3s1"}, true},
		{"runc version 1.5.0-rc.1\ncommit: x", Version{1, 5, 0, "-rc.1"}, false},
		{"runc version 1.3.0+dev", Version{1, 3, 0, "+dev"}, false},
	} {
		got, err := ParseVersion(c.text)
		if err != nil || got != c.want || got.Distribution() != c.distrib {
			t.Errorf("%q: %+v %v, distribution %v", c.text, got, err, got.Distribution())
		}
	}
	if v, err := ParseVersion("containerd v2"); err == nil {
		t.Errorf("got %v", v)
	}
	if (Version{1, 5, 0, "-rc.1"}).AtLeast(1, 5, 0) || !(Version{1, 5, 0, "~ds1"}).AtLeast(1, 5, 0) {
		t.Error("a pre-release is before its release, a package is not")
	}
}

// patch(1) must make the new file of the old one and the difference.
func TestUnifiedDiff(t *testing.T) {
	if _, err := exec.LookPath("patch"); err != nil {
		t.Log("NOT TESTED against patch(1): it is not installed")
	}
	long := strings.Repeat("same\n", 30)
	for name, c := range map[string][2]string{
		"appended":               {long, long + "more\n"},
		"no newline at the end":  {"a\nb", "a\nb\nc\n"},
		"two hunks":              {"x\n" + long + "y\n", "X\n" + long + "Y\n"},
		"one hunk of two places": {"x\ns\ns\ny\n", "X\ns\ns\nY\n"},
		"six same lines, 1 hunk": {"x\n1\n2\n3\n4\n5\n6\ny\n", "X\n1\n2\n3\n4\n5\n6\nY\n"},
		"removed":                {long + "z\n" + long, long + long},
		"from nothing":           {"", "a\n"},
	} {
		diff := unifiedDiff("f", []byte(c[0]), []byte(c[1]))
		if !strings.HasPrefix(diff, "--- f\n+++ f\n@@ ") {
			t.Errorf("%s: %s", name, diff)
		}
		if hunks := strings.Count(diff, "\n@@ "); (hunks > 1) != (name == "two hunks") {
			t.Errorf("%s: %d hunks\n%s", name, hunks, diff)
		}
		if _, err := exec.LookPath("patch"); err != nil {
			continue
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte(c[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("patch", "-d", dir, "-p0", "f")
		cmd.Stdin = strings.NewReader(diff)
		out, err := cmd.CombinedOutput()
		got, _ := os.ReadFile(filepath.Join(dir, "f"))
		if err != nil || string(got) != c[1] || strings.Contains(string(out), "fuzz") {
			t.Errorf("%s: %v %s\n%s\ngot %q", name, err, out, diff, got)
		}
	}
	if d := unifiedDiff("f", []byte("a\n"), []byte("a\n")); d != "" {
		t.Errorf("a difference of nothing: %s", d)
	}
	if d := unifiedDiff("f", nil, []byte("a\n")); d != "--- /dev/null\n+++ f\n@@ -0,0 +1,1 @@\n+a\n" {
		t.Errorf("a new file: %s", d)
	}
}

func TestBinaries(t *testing.T) {
	from, h := t.TempDir(), Host{Root: t.TempDir()}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Programs {
		if err := os.WriteFile(filepath.Join(from, name), self, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	copies, err := h.Binaries(from, DefaultBinDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.InstallBinaries(copies); err != nil {
		t.Fatal(err)
	}
	for _, c := range copies {
		st, err := os.Stat(h.real(c.To))
		if err != nil || st.Mode().Perm() != 0o755 || st.Size() != int64(len(self)) || c.Same {
			t.Errorf("%v %v", st, err)
		}
	}
	if copies, err = h.Binaries(from, DefaultBinDir); err != nil || !copies[0].Same {
		t.Errorf("again: %v %v", copies, err)
	}
	// A shim that runs keeps its file.
	proc := t.TempDir()
	if err := os.MkdirAll(filepath.Join(proc, "7"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(h.real(copies[0].To)+" (deleted)", filepath.Join(proc, "7/exe")); err != nil {
		t.Fatal(err)
	}
	if stay, err := h.RemoveBinaries(DefaultBinDir, proc); err != nil || len(stay) != 2 {
		t.Errorf("stay %v, %v", stay, err)
	}
	if stay, err := h.RemoveBinaries(DefaultBinDir, t.TempDir()); err != nil || len(stay) != 0 {
		t.Errorf("stay %v, %v", stay, err)
	}
	if now := contents(t, h.Root); len(now) != 0 {
		t.Errorf("left: %v", now)
	}
	if err := os.WriteFile(filepath.Join(from, ShimName), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Binaries(from, DefaultBinDir); err == nil {
		t.Error("a script was accepted as the shim")
	}
}
