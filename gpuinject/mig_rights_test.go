package gpuinject

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestRightsOverMIG(t *testing.T) {
	h := newMIGHost(t)
	privileged := func(s *specs.Spec) {
		s.Process.Capabilities.Bounding, s.Linux.MaskedPaths = []string{"CAP_SYS_ADMIN"}, nil
	}
	admin := func(s *specs.Spec) { s.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"} }
	inPod := func(s *specs.Spec) {
		s.Annotations["io.kubernetes.cri.container-type"] = "container"
		s.Annotations["io.kubernetes.cri.sandbox-namespace"] = "default"
	}
	const configure, watch = "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all"
	for _, tc := range []struct {
		name   string
		env    []string
		change []func(*specs.Spec)
		kind   Kind
		err    string
		gpus   int
		mig    int
		nodes  []string
		files  []string
	}{
		{name: "an ordinary container", env: []string{"all", configure}, kind: Denied, err: "CAP_SYS_ADMIN"},
		{name: "an ordinary pod that has an allocation", env: []string{"all", watch}, change: []func(*specs.Spec){inPod, func(s *specs.Spec) {
			s.Linux.Devices = h.migPod([]int{0}, nil).Linux.Devices
		}}, kind: Denied, err: "privileged"},
		{name: "with a MIG device by name", env: []string{"1:0", configure}, change: []func(*specs.Spec){admin}, kind: Invalid, err: `"1:0"`},
		{name: "CAP_SYS_ADMIN and all", env: []string{"all", configure}, change: []func(*specs.Spec){admin}, gpus: 3, mig: 3,
			nodes: append(h.capNodes(0, 1, 2), "/dev/nvidia-caps/nvidia-cap1", h.gpuNode(0), h.gpuNode(1), h.gpuNode(2)), files: []string{"mig/config"}},
		{name: "the GPU by its name", env: []string{"1", configure, watch}, change: []func(*specs.Spec){admin}, gpus: 1, mig: 3,
			nodes: append(h.capNodes(0, 1, 2), "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2", h.gpuNode(1)), files: []string{"mig/config", "mig/monitor"}},
		{name: "a GPU without MIG", env: []string{"0", watch}, change: []func(*specs.Spec){admin}, gpus: 1,
			nodes: []string{"/dev/nvidia-caps/nvidia-cap2", h.gpuNode(0)}, files: []string{"mig/monitor"}},
		{name: "a privileged pod", env: []string{"all", configure}, change: []func(*specs.Spec){inPod, privileged}, gpus: 3, mig: 3,
			nodes: append(h.capNodes(0, 1, 2), "/dev/nvidia-caps/nvidia-cap1", h.gpuNode(0), h.gpuNode(1), h.gpuNode(2))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			env := append([]string{"NVIDIA_VISIBLE_DEVICES=" + tc.env[0]}, tc.env[1:]...)
			spec := newSpec(env...)
			for _, change := range tc.change {
				change(spec)
			}
			job, err := h.resolve(t, spec)
			if tc.err != "" {
				refused(t, err, tc.kind, tc.err, strings.Split(tc.env[1], "=")[0])
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(tc.nodes)
			if got := nodesOf(job.Plan); !slices.Equal(got, tc.nodes) || len(job.Plan.GPUs) != tc.gpus || len(job.Plan.MIG) != tc.mig {
				t.Errorf("%d GPUs, %d MIG devices, nodes %q\nwant %q", len(job.Plan.GPUs), len(job.Plan.MIG), got, tc.nodes)
			}
			if err := job.Preview(""); err != nil {
				t.Fatal(err)
			}
			for _, f := range tc.files {
				if !slices.Contains(job.Plan.Proc.Capabilities, f) {
					t.Errorf("the mask shows %q, not %s", job.Plan.Proc.Capabilities, f)
				}
			}
			if len(job.Plan.MIGRights) != len(tc.env)-1 {
				t.Errorf("rights %q", job.Plan.MIGRights)
			}
		})
	}
	t.Run("an ordinary pod that has none starts without a GPU", func(t *testing.T) {
		spec := newSpec("NVIDIA_VISIBLE_DEVICES=all", configure)
		inPod(spec)
		if job, err := h.resolve(t, spec); !errors.Is(err, ErrNotGranted) {
			t.Errorf("%v, %+v", err, job.Plan)
		}
	})
}

func TestRightsOverMIGReachNoDeviceThatWasNotGranted(t *testing.T) {
	h := newMIGHost(t)
	h.cfg.Policy.AcceptEnvWhenUnprivileged = false
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all")
	spec.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"}
	spec.Linux.Devices = h.migPod([]int{0}, nil).Linux.Devices
	job, err := h.resolve(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	want := append(h.capNodes(0), "/dev/nvidia-caps/nvidia-cap2", h.gpuNode(1))
	slices.Sort(want)
	if got := nodesOf(job.Plan); !slices.Equal(got, want) || len(job.Plan.GPUs) != 0 {
		t.Errorf("nodes %q, GPUs %+v, want %q", got, job.Plan.GPUs, want)
	}
}

// Files of MIG tell the driver's libraries as well whether to make nodes.
func TestNoCapabilityFileLetsLibrariesMakeNodes(t *testing.T) {
	for text, want := range map[string]string{
		"DeviceFileMinor: 5\nDeviceFileMode: 292\nDeviceFileModify: 1\n": "DeviceFileMinor: 5\nDeviceFileMode: 292\nDeviceFileModify: 0\n",
		"DeviceFileMinor: 5\n": "DeviceFileMinor: 5\nDeviceFileModify: 0\n",
	} {
		if got := string(withLine([]byte(text), "DeviceFileModify:", "DeviceFileModify: 0")); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
