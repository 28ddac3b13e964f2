package gpuinject

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// nested makes a container of this host the host: it has no capability node but those
// of the MIG devices given by position, and its driver files are mounts.
func (h *migHost) nested(t *testing.T, keep ...int) {
	t.Helper()
	kept := h.capNodes(keep...)
	for i := range h.MIG {
		for _, node := range h.capNodes(i) {
			if !slices.Contains(kept, node) {
				_ = os.Remove(h.DevRoot + node) // two devices share one
			}
		}
	}
}

func (h *migHost) resolveNested(t *testing.T, env ...string) (*Job, error) {
	t.Helper()
	spec := newSpec(env...)
	spec.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"}
	job, err := ExamineSpec(spec, loading(h.cfg))
	if err != nil {
		return nil, err
	}
	job.Explain = true
	job.AskNVML = func() (device.Facts, error) { return factsOf(h.Driver), nil }
	if job.inv, err = device.Discover(Roots(h.cfg.Host)); err != nil {
		t.Fatal(err)
	}
	if err := job.openState(); err != nil {
		t.Fatal(err)
	}
	if job.manifest, err = job.newManifest(); err != nil {
		t.Fatal(err)
	}
	job.manifest.Files.Nested = true
	return job, job.Resolve()
}

func TestMIGInAContainerAsAHost(t *testing.T) {
	const all, configure = "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all"
	for _, tc := range []struct {
		name  string
		keep  []int // of h.MIG
		env   []string
		nodes func(h *migHost) []string
		whole []int // GPUs
		error string
	}{
		{"all is what it was given", []int{1}, []string{all}, func(h *migHost) []string {
			return append([]string{h.gpuNode(0), h.gpuNode(1), h.gpuNode(2)}, h.capNodes(1)...)
		}, []int{0, 2}, ""},
		{"a divided GPU without one is not among all", nil, []string{all}, func(h *migHost) []string {
			return []string{h.gpuNode(0), h.gpuNode(2)}
		}, []int{0, 2}, ""},
		{"nor to be had by name", nil, []string{"NVIDIA_VISIBLE_DEVICES=1"}, nil, nil, "was given none of its MIG devices"},
		{"one that has some is not either", []int{1}, []string{"NVIDIA_VISIBLE_DEVICES=1"}, nil, nil, "divided by MIG and of no use by itself"},
		{"an index of somebody else's is unknown", []int{1}, []string{"NVIDIA_VISIBLE_DEVICES=1:0"}, nil, nil, "unknown MIG device"},
		{"the right to configure brings no MIG device of others, nor the whole GPU", []int{0}, []string{all, configure}, func(h *migHost) []string {
			return append([]string{h.gpuNode(0), h.gpuNode(1), h.gpuNode(2), "/dev/nvidia-caps/nvidia-cap1"}, h.capNodes(0)...)
		}, []int{0, 2}, ""},
		{"that brings it where all of them are here", []int{0, 1, 2}, []string{all, configure}, func(h *migHost) []string {
			return append([]string{h.gpuNode(0), h.gpuNode(1), h.gpuNode(2), "/dev/nvidia-caps/nvidia-cap1"}, h.capNodes(0, 1, 2)...)
		}, []int{0, 1, 2}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newMIGHost(t)
			h.nested(t, tc.keep...)
			job, err := h.resolveNested(t, tc.env...)
			if tc.error != "" {
				refused(t, err, Invalid, tc.error)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, want := nodesOf(job.Plan), tc.nodes(h)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("nodes %q, want %q", got, want)
			}
			var whole []int
			for _, g := range job.Plan.GPUs {
				whole = append(whole, g.Index)
			}
			if !slices.Equal(whole, tc.whole) {
				t.Errorf("whole GPUs %v, want %v", whole, tc.whole)
			}
			if len(tc.keep) == 0 && !slices.ContainsFunc(job.Plan.Decisions, func(d Decision) bool {
				return d.Subject == "GPU 1" && d.Decision == "not given" && strings.Contains(d.Reason, "given none of its MIG devices")
			}) {
				t.Errorf("nobody says why GPU 1 is not there: %+v", job.Plan.Decisions)
			}
		})
	}
}
