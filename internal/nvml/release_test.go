//go:build cgo

package nvml

import (
	"path/filepath"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// The sums that a removed cgroup has left are put right, once, and by no more than is left.
func TestARequestOfARemovedCgroupIsReleased(t *testing.T) {
	h := newLimitHost(t, "dmem", sim.Options{GPUs: 2})
	h.use("dmem", mib)
	pod := filepath.Dir(h.leaf)
	other := h.Make("pod/other", true)
	_, err := h.set(h.limit(0, 2*gib-1, 4*gib), h.limit(1, gib, gib))
	check(t, err)
	_, err = h.ask(other, probe.Questions{SetMemory: []probe.MemoryLimit{h.limit(0, 3*gib, probe.NoMemoryLimit)}})
	check(t, err)
	release := func(when, cgroup string, requested probe.MemoryLimit, want ...string) {
		t.Helper()
		_, err := h.ask(cgroup, probe.Questions{ReleaseMemory: []probe.MemoryLimit{requested}})
		check(t, err)
		h.has(when, append(want, "pod/other 0 3 max")...)
	}
	all := []string{"pod/leaf 0 2 4", "pod/leaf 1 1 1", "pod 0 5 max", " 0 5 max", "pod 1 1 max", " 1 1 max"}
	release("it is there", pod, h.limit(0, 2*gib, probe.NoMemoryLimit), all...)
	h.RemoveCgroup(h.leaf)
	left := []string{"pod 1 1 max", " 1 1 max"}
	release("a part", pod, h.limit(0, gib, probe.NoMemoryLimit), append(left, "pod 0 4 max", " 0 4 max")...)
	release("the rest", pod, h.limit(0, 2*gib-1, probe.NoMemoryLimit), append(left, "pod 0 3 max", " 0 3 max")...)
	release("again", pod, h.limit(0, 2*gib-1, probe.NoMemoryLimit), append(left, "pod 0 3 max", " 0 3 max")...)
	release("the other GPU", pod, h.limit(1, gib, probe.NoMemoryLimit), "pod 0 3 max", " 0 3 max")
	// The pod's cgroup goes, with a request that is left.
	h.RemoveCgroup(pod)
	_, err = h.ask(h.Top, probe.Questions{ReleaseMemory: []probe.MemoryLimit{h.limit(0, 3*gib, probe.NoMemoryLimit)}})
	check(t, err)
	h.has("all are gone")
	h.use("internal", 0)
	_, err = h.ask(h.Top, probe.Questions{ReleaseMemory: []probe.MemoryLimit{h.limit(0, 3*gib, probe.NoMemoryLimit)}})
	check(t, err)
}
