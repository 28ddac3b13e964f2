package runtimeclass

import (
	"testing"
)

func TestManifest(t *testing.T) {
	for want, m := range map[string]Manifest{
		"apiVersion: node.k8s.io/v1\nhandler: nvidia\nkind: RuntimeClass\nmetadata:\n  name: \"12\"\n": {Metadata: map[string]string{"name": "12"}, Handler: "nvidia"},
		`apiVersion: node.k8s.io/v1
handler: nvidia
kind: RuntimeClass
metadata:
  name: nvidia
scheduling:
  nodeSelector:
    a: "1"
    nvidia.com/gpu.present: "true"
  tolerations:
    - effect: NoSchedule
      key: nvidia.com/gpu
      operator: Exists
    - key: pool
      operator: Equal
      value: gpu
`: {Metadata: map[string]string{"name": "nvidia"}, Handler: "nvidia", Scheduling: Scheduling{
			NodeSelector: map[string]string{"nvidia.com/gpu.present": "true", "a": "1"},
			Tolerations:  []Toleration{{Key: "nvidia.com/gpu", Effect: "NoSchedule", Operator: "Exists"}, {Key: "pool", Operator: "Equal", Value: "gpu"}},
		}},
	} {
		if got, err := m.YAML(); err != nil || string(got) != want {
			t.Errorf("%v\n%s", err, got)
		}
	}
	if text, err := (Manifest{Handler: "a.b"}).YAML(); err == nil {
		t.Errorf("a handler with dots: accepted\n%s", text)
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
