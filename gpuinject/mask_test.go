package gpuinject

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// userNamespace puts the container of spec into a user namespace.
func userNamespace(spec *specs.Spec, path string, hostIDs ...uint32) {
	spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
	for i, id := range hostIDs {
		spec.Linux.UIDMappings = append(spec.Linux.UIDMappings, specs.LinuxIDMapping{ContainerID: uint32(i) * 1000, HostID: id, Size: 1000})
	}
}

func TestWhoGetsTheMask(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*specs.Spec)
		masked bool
	}{
		{"an ordinary container", func(*specs.Spec) {}, true},
		{"an unmasked /proc alone", func(s *specs.Spec) { s.Linux.MaskedPaths = nil }, true},
		{"CAP_SYS_ADMIN alone", func(s *specs.Spec) { s.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"} }, true},
		{"a privileged container", func(s *specs.Spec) {
			s.Process.Capabilities.Bounding, s.Linux.MaskedPaths = []string{"CAP_SYS_ADMIN"}, nil
		}, false},
		{"a user namespace", func(s *specs.Spec) { userNamespace(s, "", 100000) }, true},
		{"an unmasked /proc in a user namespace", func(s *specs.Spec) { userNamespace(s, "", 100000); s.Linux.MaskedPaths = nil }, false},
		{"an unmasked /proc in the user namespace of the pod", func(s *specs.Spec) {
			userNamespace(s, "/proc/7/ns/user", 100000)
			s.Linux.MaskedPaths = nil
		}, false},
		{"an unmasked /proc in a user namespace that has the host's root", func(s *specs.Spec) {
			userNamespace(s, "", 100000, 0)
			s.Linux.MaskedPaths = nil
		}, true},
		{"an unmasked /proc in a user namespace of unknown users", func(s *specs.Spec) {
			userNamespace(s, "/proc/1/ns/user")
			s.Linux.MaskedPaths = nil
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := newSpec("NVIDIA_VISIBLE_DEVICES=1")
			tc.change(spec)
			dir := newBundle(t, spec)
			inj := mustInject(t, hostConfig(t), dir)
			if inj.Plan.Proc.Masked != tc.masked || (inj.mask != nil) != tc.masked {
				t.Errorf("masked %v (%v), want %v", inj.Plan.Proc.Masked, inj.mask != nil, tc.masked)
			}
			job, err := resolve(t, hostConfig(t), spec)
			if err != nil {
				t.Fatal(err)
			}
			if err := job.Preview(""); err != nil || job.Plan.Proc.Masked != tc.masked {
				t.Errorf("planned: masked %v, want %v (%v)", job.Plan.Proc.Masked, tc.masked, err)
			}
		})
	}
}

func TestAContainerWhoseMountsAreNotItsOwnIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*specs.Spec)
		says   string // "" where it is given the driver
	}{
		{"no mount namespace", func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] }, "no mount namespace"},
		{"the mount namespace of another", func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/proc/1/ns/mnt" }, "no mount namespace"},
		{"no /proc", func(s *specs.Spec) { s.Mounts = s.Mounts[1:] }, "no procfs"},
		{"no /proc, and privileged", func(s *specs.Spec) {
			s.Mounts = s.Mounts[1:]
			s.Process.Capabilities.Bounding, s.Linux.MaskedPaths = []string{"CAP_SYS_ADMIN"}, nil
		}, ""},
		{"the host's /proc over its own", func(s *specs.Spec) { s.Mounts = append(s.Mounts, volume("/proc/")) }, "no procfs"},
		{"its own /proc over the host's", func(s *specs.Spec) { s.Mounts = append([]specs.Mount{volume("/proc")}, s.Mounts...) }, ""},
		{"another file system at /proc", func(s *specs.Spec) { s.Mounts[0].Type = "tmpfs" }, "no procfs"},
		{"a /proc that is written oddly", func(s *specs.Spec) { s.Mounts[0].Destination = "proc/." }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
			tc.change(spec)
			dir := newBundle(t, spec)
			_, err := inject(t, hostConfig(t), dir)
			if tc.says != "" {
				refused(t, err, Invalid, tc.says)
				if entries, _ := os.ReadDir(filepath.Join(dir, "rootfs/etc")); len(entries) > 0 {
					t.Errorf("the image was changed before: %v", entries)
				}
				return
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTheParametersNeverLetLibrariesMakeNodes(t *testing.T) {
	for params, want := range map[string]string{
		"":                                   "ModifyDeviceFiles: 0\n",
		"\n\n":                               "ModifyDeviceFiles: 0\n",
		"ModifyDeviceFiles: 1\n":             "ModifyDeviceFiles: 0\n",
		"ModifyDeviceFiles:1":                "ModifyDeviceFiles: 0",
		"A: 1\nModifyDeviceFiles: 1\nB: 2\n": "A: 1\nModifyDeviceFiles: 0\nB: 2\n",
		"A: 1\n":                             "A: 1\nModifyDeviceFiles: 0\n",
		"A: 1":                               "A: 1\nModifyDeviceFiles: 0\n",
		"NotModifyDeviceFiles: 1\n":          "NotModifyDeviceFiles: 1\nModifyDeviceFiles: 0\n",
		"ModifyDeviceFiles: 1\nModifyDeviceFiles: 1\n": "ModifyDeviceFiles: 0\nModifyDeviceFiles: 0\n",
	} {
		if got := string(withoutDeviceFiles([]byte(params))); got != want {
			t.Errorf("%q became %q, want %q", params, got, want)
		}
	}
}

func TestAProcfsFileThatIsTooLargeIsNotCut(t *testing.T) {
	name := filepath.Join(t.TempDir(), "params")
	writeFile(t, name, strings.Repeat("x", device.MaxProcFile), 0o600)
	if data, err := (&Job{}).readProc(name); err != nil || len(data) != device.MaxProcFile {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	writeFile(t, name, strings.Repeat("x", device.MaxProcFile+1), 0o600)
	if _, err := (&Job{}).readProc(name); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("error %v", err)
	}
}

func TestAMaskGoesOnNobodysMountsButAContainers(t *testing.T) {
	inj := mustInject(t, hostConfig(t), newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0")))
	refused(t, inj.Attach(os.Getpid()), Internal, "mount namespace of the host")
	inj.Close()
	inj.Close()
}
