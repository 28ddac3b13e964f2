package gpuinject

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// userNamespace puts the container into a user namespace.
func userNamespace(path string, hostIDs ...uint32) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
		for i, id := range hostIDs {
			s.Linux.UIDMappings = append(s.Linux.UIDMappings, specs.LinuxIDMapping{ContainerID: uint32(i) * 1000, HostID: id, Size: 1000})
		}
	}
}

func TestWhoGetsTheMask(t *testing.T) {
	const masked, not = "masked, shows GPU 1", "not masked"
	table{env: devices("1"), show: showProc, rows: []row{
		{name: "an ordinary container", want: masked},
		{name: "an unmasked /proc alone", spec: unmasked, want: masked},
		{name: "CAP_SYS_ADMIN alone", spec: admin, want: masked},
		{name: "privileged", spec: privileged, want: not},
		{name: "a user namespace", spec: userNamespace("", 100000), want: masked},
		{name: "an unmasked /proc in a user namespace", spec: all(unmasked, userNamespace("", 100000)), want: not},
		{name: "an unmasked /proc in the user namespace of the pod", spec: all(unmasked, userNamespace("/proc/7/ns/user", 100000)), want: not},
		{name: "an unmasked /proc in a user namespace that has the host's root", spec: all(unmasked, userNamespace("", 100000, 0)), want: masked},
		{name: "an unmasked /proc in a user namespace of unknown users", spec: all(unmasked, userNamespace("/proc/1/ns/user")), want: masked},
	}}.run(t)
	plan := mustInject(t, hostConfig(t), newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0")))
	if !plan.Proc.Masked {
		t.Error("no mask was built")
	}
}

// A container whose mounts or nodes are not its own is refused.
func TestIsolation(t *testing.T) {
	noProc := func(s *specs.Spec) { s.Mounts = s.Mounts[1:] }
	table{env: devices("0"), rows: []row{
		{name: "no mount namespace", spec: func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] }, want: "refused: no mount namespace"},
		{name: "the mount namespace of another", spec: func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/proc/1/ns/mnt" }, want: "refused: no mount namespace"},
		{name: "no /proc", spec: noProc, want: "refused: no procfs"},
		{name: "no /proc, and privileged", spec: all(noProc, privileged), want: "GPU 0"},
		{name: "the host's /proc over its own", spec: mounting("/srv", "/proc/"), want: "refused: no procfs"},
		{name: "its own /proc over the host's", spec: func(s *specs.Spec) {
			s.Mounts = append([]specs.Mount{{Source: "/srv", Destination: "/proc", Type: "bind"}}, s.Mounts...)
		}, want: "GPU 0"},
		{name: "another file system at /proc", spec: func(s *specs.Spec) { s.Mounts[0].Type = "tmpfs" }, want: "refused: no procfs"},
		{name: "a node with another device's number", want: "refused: c 1:11", kind: Invalid, spec: func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/nvidiactl", Type: "c", Major: 1, Minor: 11}}
		}},
		{name: "a /proc that is written oddly", spec: func(s *specs.Spec) { s.Mounts[0].Destination = "proc/." }, want: "GPU 0"},
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
