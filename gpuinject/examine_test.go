package gpuinject

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

func TestAContainerThatDoesNotAskNeverMeetsTheConfiguration(t *testing.T) {
	for name, spec := range map[string]*specs.Spec{
		"no variable":                  newSpec("PATH=/bin"),
		"an empty variable":            newSpec("NVIDIA_VISIBLE_DEVICES="),
		"blanks":                       newSpec("NVIDIA_VISIBLE_DEVICES= , "),
		"void":                         newSpec("NVIDIA_VISIBLE_DEVICES=void"),
		"void after all":               newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"),
		"a name that only begins so":   newSpec("NVIDIA_VISIBLE_DEVICES_X=all"),
		"the name without a value":     newSpec("NVIDIA_VISIBLE_DEVICES"),
		"the name in another variable": newSpec("X=NVIDIA_VISIBLE_DEVICES=all"),
		"a modern CUDA image":          newSpec("CUDA_VERSION=12.9.0", "NVIDIA_REQUIRE_CUDA=cuda>=12.9"),
		"no process":                   {Annotations: map[string]string{"x": "NVIDIA_VISIBLE_DEVICES"}},
		"the sandbox of a pod": func() *specs.Spec {
			s := newSpec("NVIDIA_VISIBLE_DEVICES=all")
			s.Annotations["io.kubernetes.cri.container-type"] = "sandbox"
			return s
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			load := func() (*config.Config, error) {
				t.Error("the configuration was loaded")
				return nil, errors.New("broken")
			}
			job, raw, err := Examine(newBundle(t, spec), load)
			if job != nil || err != nil || len(raw) == 0 {
				t.Errorf("job %v, %d bytes of configuration, error %v", job, len(raw), err)
			}
		})
	}
}

func TestAContainerThatAsksFailsWithABrokenConfiguration(t *testing.T) {
	load := func() (*config.Config, error) { return nil, errors.New("configuration /etc/x: line 3: unknown key") }
	_, _, err := Examine(newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0")), load)
	refused(t, err, Precondition, "/etc/x", "unknown key")
}

func TestAnUnsupportedCapabilityIsNamedWithTheSupportedOnes(t *testing.T) {
	cfg := hostConfig(t)
	cfg.Container.SupportedCapabilities = []string{"compute", "utility"}
	_, _, err := Examine(newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility,gra\nphics")), loading(cfg))
	refused(t, err, Invalid, `"gra\nphics"`, "compute,utility")
}

func TestAConfigurationThatOthersCanWriteIsRefusedOnlyWhereItAsks(t *testing.T) {
	asks := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	plain := newBundle(t, newSpec("A=B"))
	for _, dir := range []string{asks, plain} {
		if err := os.Chmod(filepath.Join(dir, bundle.ConfigName), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := Examine(asks, loading(hostConfig(t)))
	refused(t, err, Precondition, "0666")
	if job, raw, err := Examine(plain, nil); job != nil || raw != nil || err != nil {
		t.Errorf("job %v, %d bytes, error %v", job, len(raw), err)
	}
	if job, _, err := Examine(t.TempDir(), nil); job != nil || err != nil {
		t.Errorf("no config.json at all: job %v, error %v", job, err)
	}
}

func TestAConfigurationThatIsNoJSONIsRefusedWhereItAsks(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, bundle.ConfigName), `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]`, 0o600)
	_, _, err := Examine(dir, nil)
	refused(t, err, Invalid, "config.json")
}

func TestTheRootFileSystemIsFoundAsRuncFindsIt(t *testing.T) {
	for config, want := range map[string]string{
		`{}`:                                "DIR/rootfs",
		`{"root": {}}`:                      "DIR/rootfs",
		`{"root": {"path": "fs/../other"}}`: "DIR/other",
		`{"root": {"path": "/srv/image"}}`:  "/srv/image",
	} {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, bundle.ConfigName), config, 0o600)
		if got, err := RootPath(dir); err != nil || got != strings.ReplaceAll(want, "DIR", dir) {
			t.Errorf("%s: %s, %v", config, got, err)
		}
	}
}

// A container of a user namespace is no privileged one, whatever its capabilities:
// they end at the namespace.
func TestPrivilegedIsWhoMayDoEverythingOnTheHost(t *testing.T) {
	for _, tc := range []struct {
		name                  string
		admin, unmasked, user bool
		userPath              string
		privileged            bool
	}{
		{name: "an ordinary container"},
		{name: "only CAP_SYS_ADMIN", admin: true},
		{name: "only an unmasked /proc", unmasked: true},
		{name: "both", admin: true, unmasked: true, privileged: true},
		{name: "both, in a user namespace of its own", admin: true, unmasked: true, user: true},
		{name: "both, in the user namespace of its pod", admin: true, unmasked: true, user: true, userPath: "/proc/7/ns/user"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
			if tc.admin {
				spec.Process.Capabilities.Bounding = append(spec.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
			}
			if tc.unmasked {
				spec.Linux.MaskedPaths = nil
			}
			if tc.user {
				spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: tc.userPath})
			}
			job, err := ExamineSpec(spec, loading(hostConfig(t)))
			if err != nil || job.Container.Privileged != tc.privileged {
				t.Errorf("privileged %v, want %v (%v)", job.Container.Privileged, tc.privileged, err)
			}
		})
	}
}

// What the first look passes over never gets to the second.
func TestTheFirstLookFindsEveryWayToAsk(t *testing.T) {
	for _, word := range []string{
		"NVIDIA_VISIBLE_DEVICES=0", "CUDA_VERSION=8.0", "/var/run/nvidia-container-devices/0", "cdi.k8s.io/x", "nvidia.cdi.k8s.io",
		"DOCKER_RESOURCE_GPU=0", "/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-ctk",
	} {
		if !mightAsk([]byte(`{"x": "` + word + `"}`)) {
			t.Errorf("%s is passed over", word)
		}
	}
	for _, word := range []string{"NVIDIA_DRIVER_CAPABILITIES=all", "/usr/bin/nvidia-container-runtime-hook", "nvidia-c", "example.com/nic=0"} {
		if mightAsk([]byte(`{"x": "` + word + `"}`)) {
			t.Errorf("%s is looked at", word)
		}
	}
}
