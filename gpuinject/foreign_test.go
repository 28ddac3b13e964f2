package gpuinject

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// foreignCDI is another vendor's specification.
const foreignCDI = `{"cdiVersion": "0.6.0", "kind": "example.com/nic",
 "containerEdits": {"env": ["NIC_VENDOR=example", "PATH=/nic/bin"], "hooks": [{"hookName": "createRuntime", "path": "/opt/nic/hook", "args": ["hook", "up"]}]},
 "devices": [{"name": "eth0", "containerEdits": {
   "deviceNodes": [{"path": "/dev/nic0", "type": "c", "major": 240, "minor": 3}],
   "mounts": [{"hostPath": "/opt/nic/lib", "containerPath": "/opt/nic/lib", "options": ["ro", "bind"]}]}}]}`

func foreignDirs(t testing.TB, cfg *config.Config, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "nic.json")
	writeFile(t, name, text, 0o644)
	cfg.Host.CDISpecDirs = []string{filepath.Join(dir, "none"), dir}
	return name
}

func TestAnotherVendorsDevicesComeFromTheHostsSpecifications(t *testing.T) {
	for _, ask := range []string{"nvidia.com/gpu=1,example.com/nic=eth0", "example.com/nic=eth0"} {
		t.Run(ask, func(t *testing.T) {
			cfg := hostConfig(t)
			foreignDirs(t, cfg, foreignCDI)
			dir := newBundle(t, newSpec("PATH=/bin", "NVIDIA_VISIBLE_DEVICES="+ask))
			inj := mustInject(t, cfg, dir)
			got := readSpec(t, dir)
			if n := len(inj.Plan.GPUs); n != strings.Count(ask, "gpu") || !slices.Equal(inj.Plan.Foreign, []string{"example.com/nic=eth0"}) {
				t.Errorf("%d GPUs, foreign %q", n, inj.Plan.Foreign)
			}
			if len(got.Hooks.CreateRuntime) != 1 || got.Hooks.CreateRuntime[0].Path != "/opt/nic/hook" {
				t.Errorf("hooks %+v", got.Hooks)
			}
			if !slices.ContainsFunc(got.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == "/dev/nic0" && d.Minor == 3 }) {
				t.Errorf("devices %+v", got.Linux.Devices)
			}
			last := got.Linux.Resources.Devices[len(got.Linux.Resources.Devices)-1]
			if *last.Major != 240 || *last.Minor != 3 || last.Access != "rw" {
				t.Errorf("rule %+v", last)
			}
			if !slices.Contains(destinations(got.Mounts), "/opt/nic/lib") || slices.Contains(destinations(got.Mounts), ViewDir) != strings.Contains(ask, "gpu") {
				t.Errorf("mounts %q", destinations(got.Mounts))
			}
			if want := []string{"NVIDIA_VISIBLE_DEVICES=" + ask, "NIC_VENDOR=example", "PATH=/nic/bin"}; !slices.Equal(got.Process.Env, want) {
				t.Errorf("env %q, want %q", got.Process.Env, want)
			}
			mustInject(t, cfg, dir)
			if again := readSpec(t, dir); !reflect.DeepEqual(got, again) {
				t.Errorf("injected twice: %+v\nonce: %+v", again, got)
			}
		})
	}
}

func TestAnotherVendorsDevicesAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		change     func(t *testing.T, file string)
		kind       Kind
		says       []string
	}{
		{"that no specification has", strings.ReplaceAll(foreignCDI, "eth0", "eth1"), nil, Invalid, []string{`"example.com/nic=eth0"`, "no specification in"}},
		{"with a hook of NVIDIA's", strings.ReplaceAll(foreignCDI, "/opt/nic/hook", "/usr/bin/nvidia-ctk"), nil, Denied, []string{"/usr/bin/nvidia-ctk"}},
		{"whose specification others can write", foreignCDI, func(t *testing.T, file string) {
			if err := os.Chmod(file, 0o664); err != nil {
				t.Fatal(err)
			}
		}, Precondition, []string{"nic.json", "0664"}},
		{"whose directory others can write", foreignCDI, func(t *testing.T, file string) {
			if err := os.Chmod(filepath.Dir(file), 0o777); err != nil {
				t.Fatal(err)
			}
		}, Precondition, []string{"nic.json", "0777"}},
		{"of another user's", foreignCDI, func(t *testing.T, file string) {
			if err := os.Chown(file, 1000, 0); err != nil {
				t.Fatal(err)
			}
		}, Precondition, []string{"uid 1000"}},
		{"with network devices", strings.Replace(strings.Replace(foreignCDI, `"deviceNodes"`, `"netDevices": [{"hostInterfaceName": "eth0", "name": "eth1"}], "deviceNodes"`, 1), "0.6.0", "1.1.0", 1), nil, Precondition, []string{"network devices", "--device"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := hostConfig(t)
			file := foreignDirs(t, cfg, tc.text)
			if tc.change != nil {
				tc.change(t, file)
			}
			_, err := resolve(t, cfg, newSpec("NVIDIA_VISIBLE_DEVICES=example.com/nic=eth0"))
			refused(t, err, tc.kind, tc.says...)
		})
	}
}

func TestAPodGetsNoOtherVendorsDevicesByItsEnvironment(t *testing.T) {
	for _, tc := range []struct {
		mode, namespace string
		given           bool
	}{
		{config.Enforce, "default", false}, {config.Audit, "default", true}, {config.TrustEnv, "default", true}, {config.Enforce, "gpu-operator", true},
	} {
		for _, ask := range []string{"0,example.com/nic=eth0", "example.com/nic=eth0"} {
			cfg := hostConfig(t)
			cfg.Policy.Kubernetes = tc.mode
			foreignDirs(t, cfg, foreignCDI)
			only := !strings.HasPrefix(ask, "0")
			job, err := resolve(t, cfg, pod(t, tc.namespace, []int{0}, "NVIDIA_VISIBLE_DEVICES="+ask))
			if only && !tc.given {
				if !errors.Is(err, ErrNotGranted) {
					t.Errorf("%s: %v", ask, err)
				}
				continue
			}
			if err != nil || (job.foreign != nil) != tc.given {
				t.Errorf("%s in %s, %s: given %v, %v", ask, tc.namespace, tc.mode, job.foreign != nil, err)
			}
			if !only && !tc.given && !strings.Contains(strings.Join(job.Plan.Ignored, "\n"), "example.com/nic=eth0: ") {
				t.Errorf("ignored %q", job.Plan.Ignored)
			}
			if (tc.mode == config.Audit) != strings.Contains(job.Plan.Audit, notForeign) {
				t.Errorf("audit %q", job.Plan.Audit)
			}
		}
	}
}
