package gpuinject

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
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
	refused(t, err, verdict.KindPrecondition, "0666")
	if c, err := Examine(plain, nil); c.Asks || c.Raw != nil || err != nil {
		t.Errorf("%+v, error %v", c, err)
	}
	writeFile(t, filepath.Join(plain, bundle.ConfigName), `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]`, 0o600)
	_, err = Examine(plain, nil)
	refused(t, err, verdict.KindInvalid, "config.json")
	if c, err := Examine(t.TempDir(), nil); c.Asks || err != nil {
		t.Errorf("no config.json at all: %+v, error %v", c, err)
	}
	broken := func() (*config.Config, error) { return nil, errors.New("configuration /etc/x: line 3: unknown key") }
	_, err = Examine(newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0")), broken)
	refused(t, err, verdict.KindPrecondition, "/etc/x", "unknown key")
}

// The size of config.json, of its variables and of its lists is checked before a GPU is looked for.
func TestExamineLargeConfigurations(t *testing.T) {
	const asks = "NVIDIA_VISIBLE_DEVICES=0"
	long := strings.Repeat("x", 8<<20)
	mounts := func(s *specs.Spec) { s.Mounts = slices.Repeat(s.Mounts[:1], 4097) }
	devices := func(s *specs.Spec) { s.Linux.Devices = make([]specs.LinuxDevice, 4097) }
	for _, tc := range []struct {
		name string
		spec *specs.Spec
		kind verdict.Kind
		want string // the error, if any
	}{
		{"config.json", newSpec(asks, long), verdict.KindPrecondition, "is larger than 8388608 bytes"},
		{"config.json with the request at its end", newSpec(long, asks), verdict.KindPrecondition, "is larger than 8388608 bytes"},
		{"config.json without a request", newSpec(long), 0, ""},
		{"variables", newSpec(append(slices.Repeat([]string{"A="}, 128<<10), asks)...), verdict.KindInvalid, "more than 131072 commas"},
		{"100,000 variables", newSpec(append(slices.Repeat([]string{"A="}, 100_000), asks)...), 0, ""},
		{"one variable", newSpec("NVIDIA_VISIBLE_DEVICES=" + strings.Repeat("0", 128<<10)), verdict.KindInvalid, "has 131095 bytes"},
		{"mounts", changed(newSpec(asks), mounts), verdict.KindInvalid, "has 4097 mounts, a container with GPUs may have 4096"},
		{"mounts without a request", changed(newSpec("NVIDIA_VISIBLE_DEVICES=void"), mounts), 0, ""},
		{"devices", changed(newSpec(asks), devices), verdict.KindInvalid, "has 4097 devices"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := Examine(newBundle(t, tc.spec), loading(hostConfig(t)))
			if tc.want != "" {
				refused(t, err, tc.kind, tc.want)
			} else if err != nil || c.Asks != slices.Contains(tc.spec.Process.Env, asks) {
				t.Errorf("asks: %v, %v", c.Asks, err)
			}
		})
	}
}

func TestARequestInAFileOfAnySizeIsFound(t *testing.T) {
	name := filepath.Join(t.TempDir(), bundle.ConfigName)
	for before := 1<<20 - 40; before < 1<<20+4; before++ { // the file is read in parts of 1 MiB
		writeFile(t, name, strings.Repeat("x", before)+"NVIDIA_VISIBLE_DEVICES"+strings.Repeat("x", 100), 0o600)
		if !mightAskUnchecked(name) {
			t.Errorf("not found after %d bytes", before)
		}
	}
	writeFile(t, name, strings.Repeat("x", 3<<20), 0o600)
	if mightAskUnchecked(name) {
		t.Error("found in a file without a request")
	}
}
