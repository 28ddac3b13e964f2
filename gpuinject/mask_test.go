package gpuinject

import (
	"os"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// userNamespace puts the container of spec into a user namespace.
func userNamespace(spec *specs.Spec, path string, hostIDs ...uint32) {
	spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
	for i, id := range hostIDs {
		spec.Linux.UIDMappings = append(spec.Linux.UIDMappings, specs.LinuxIDMapping{ContainerID: uint32(i) * 1000, HostID: id, Size: 1000})
	}
}

func TestWhoGetsTheMask(t *testing.T) {
	unmasked := func(path string, hostIDs ...uint32) func(*specs.Spec) {
		return func(s *specs.Spec) { userNamespace(s, path, hostIDs...); s.Linux.MaskedPaths = nil }
	}
	const masked, not = "masked, shows GPU 1", "not masked"
	contractSection{env: devices("1"), show: showProc, cases: []contractCase{
		{name: "an ordinary container", here: masked},
		{name: "an unmasked /proc alone", spec: func(s *specs.Spec) { s.Linux.MaskedPaths = nil }, here: masked},
		{name: "CAP_SYS_ADMIN alone", spec: admin, here: masked},
		{name: "privileged", spec: privileged, here: not},
		{name: "a user namespace", spec: func(s *specs.Spec) { userNamespace(s, "", 100000) }, here: masked},
		{name: "an unmasked /proc in a user namespace", spec: unmasked("", 100000), here: not},
		{name: "an unmasked /proc in the user namespace of the pod", spec: unmasked("/proc/7/ns/user", 100000), here: not},
		{name: "an unmasked /proc in a user namespace that has the host's root", spec: unmasked("", 100000, 0), here: masked},
		{name: "an unmasked /proc in a user namespace of unknown users", spec: unmasked("/proc/1/ns/user"), here: masked},
	}}.run(t)
	inj := mustInject(t, hostConfig(t), newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0")))
	if !inj.Plan.Proc.Masked || inj.Mask == nil {
		t.Error("no mask was built")
	}
}

// A container whose mounts are not its own is refused.
func TestIsolation(t *testing.T) {
	noProc := func(s *specs.Spec) { s.Mounts = s.Mounts[1:] }
	contractSection{env: devices("0"), cases: []contractCase{
		{name: "no mount namespace", spec: func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] }, here: "refused: no mount namespace"},
		{name: "the mount namespace of another", spec: func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/proc/1/ns/mnt" }, here: "refused: no mount namespace"},
		{name: "no /proc", spec: noProc, here: "refused: no procfs"},
		{name: "no /proc, and privileged", spec: func(s *specs.Spec) { noProc(s); privileged(s) }, here: "GPU 0"},
		{name: "the host's /proc over its own", spec: func(s *specs.Spec) { s.Mounts = append(s.Mounts, volumeMount("/proc/")) }, here: "refused: no procfs"},
		{name: "its own /proc over the host's", spec: func(s *specs.Spec) { s.Mounts = append([]specs.Mount{volumeMount("/proc")}, s.Mounts...) }, here: "GPU 0"},
		{name: "another file system at /proc", spec: func(s *specs.Spec) { s.Mounts[0].Type = "tmpfs" }, here: "refused: no procfs"},
		{name: "a /proc that is written oddly", spec: func(s *specs.Spec) { s.Mounts[0].Destination = "proc/." }, here: "GPU 0"},
	}}.run(t)
}

func TestModifyDeviceFiles(t *testing.T) {
	for params, want := range map[string]string{
		"":                                   "ModifyDeviceFiles: 0\n",
		"\n\n":                               "ModifyDeviceFiles: 0\n",
		"ModifyDeviceFiles: 1\n":             "ModifyDeviceFiles: 0\n",
		"ModifyDeviceFiles:1":                "ModifyDeviceFiles: 0\n",
		"A: 1\nModifyDeviceFiles: 1\nB: 2\n": "A: 1\nModifyDeviceFiles: 0\nB: 2\n",
		"A: 1\n":                             "A: 1\nModifyDeviceFiles: 0\n",
		"A: 1":                               "A: 1\nModifyDeviceFiles: 0\n",
		"NotModifyDeviceFiles: 1\n":          "NotModifyDeviceFiles: 1\nModifyDeviceFiles: 0\n",
		"ModifyDeviceFiles: 1\nModifyDeviceFiles: 1\n": "ModifyDeviceFiles: 0\nModifyDeviceFiles: 0\n",
	} {
		if got := string(setLine([]byte(params), "ModifyDeviceFiles: 0")); got != want {
			t.Errorf("%q became %q, want %q", params, got, want)
		}
	}
}

func TestAttachMaskToHost(t *testing.T) {
	inj := mustInject(t, hostConfig(t), newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0")))
	refused(t, AttachMask(inj.Mask, "/proc/driver/nvidia", os.Getpid()), Internal, "mount namespace of the host")
}
