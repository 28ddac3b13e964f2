package gpuinject

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

func changed(spec *specs.Spec, change func(*specs.Spec)) *specs.Spec {
	change(spec)
	return spec
}

func TestExamineDoesNotLoadConfiguration(t *testing.T) {
	for name, spec := range map[string]*specs.Spec{
		"no variable":                  newSpec("PATH=/bin"),
		"void":                         newSpec("NVIDIA_VISIBLE_DEVICES=void"),
		"a name that only begins so":   newSpec("NVIDIA_VISIBLE_DEVICES_X=all"),
		"the name without a value":     newSpec("NVIDIA_VISIBLE_DEVICES"),
		"the name in another variable": newSpec("X=NVIDIA_VISIBLE_DEVICES=all"),
		"no process":                   {Annotations: map[string]string{"x": "NVIDIA_VISIBLE_DEVICES"}},
		// In a pod swarm's variables mean nothing.
		"swarm's resource in a pod": changed(newSpec("DOCKER_RESOURCE_GPU=2"), inPod()),
		"the sandbox of a pod":      changed(newSpec("NVIDIA_VISIBLE_DEVICES=all"), annotated("io.kubernetes.cri.container-type", "sandbox")),
	} {
		t.Run(name, func(t *testing.T) {
			load := func() (*config.Config, error) {
				t.Error("the configuration was loaded")
				return nil, errors.New("broken")
			}
			c, err := Examine(newBundle(t, spec), load)
			if c.Asks || err != nil || len(c.Raw) == 0 || c.Reason == "" {
				t.Errorf("%+v, error %v", c, err)
			}
		})
	}
}

func TestExamineBrokenFiles(t *testing.T) {
	asks := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	plain := newBundle(t, newSpec("A=B"))
	for _, dir := range []string{asks, plain} {
		check(t, os.Chmod(filepath.Join(dir, bundle.ConfigName), 0o666))
	}
	_, err := Examine(asks, loading(hostConfig(t)))
	refused(t, err, Precondition, "0666")
	if c, err := Examine(plain, nil); c.Asks || c.Raw != nil || err != nil {
		t.Errorf("%+v, error %v", c, err)
	}
	writeFile(t, filepath.Join(plain, bundle.ConfigName), `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]`, 0o600)
	_, err = Examine(plain, nil)
	refused(t, err, Invalid, "config.json")
	if c, err := Examine(t.TempDir(), nil); c.Asks || err != nil {
		t.Errorf("no config.json at all: %+v, error %v", c, err)
	}
	broken := func() (*config.Config, error) { return nil, errors.New("configuration /etc/x: line 3: unknown key") }
	_, err = Examine(newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0")), broken)
	refused(t, err, Precondition, "/etc/x", "unknown key")
}
