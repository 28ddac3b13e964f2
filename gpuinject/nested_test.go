package gpuinject

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// nested makes a container of this host the host: it has no capability node but those
// of the MIG devices given by position, and its driver files are mounts.
func (h *migHost) nested(t *testing.T, keep ...int) {
	t.Helper()
	libcuda, err := filepath.Glob(filepath.Join(h.Root, "usr/lib/*/libcuda.so."+h.Version))
	if err != nil || len(libcuda) != 2 {
		t.Fatal(libcuda, err)
	}
	mount(t, libcuda[1], libcuda[1], "", unix.MS_BIND)
	kept := h.capNodes(keep...)
	for i := range h.MIG {
		for _, node := range h.capNodes(i) {
			if !slices.Contains(kept, node) {
				_ = os.Remove(h.DevRoot + node) // two devices share one
			}
		}
	}
}

func TestMIGInAContainerAsAHost(t *testing.T) {
	const configure = "NVIDIA_MIG_CONFIG_DEVICES=all"
	host := func(keep ...int) *migHost {
		h := newMIGHost(t)
		h.nested(t, keep...)
		return h
	}
	none, first, second, all := host(), host(0), host(1), host(0, 1, 2)
	contractSection{show: showMIG, cases: []contractCase{
		{name: "all is what it was given", host: second, env: devices("all"), here: "GPU 0, GPU 2, 5/0 of GPU 1"},
		{name: "a partitioned GPU without a MIG device is not among all", host: none, env: devices("all"), here: "GPU 0, GPU 2"},
		{name: "nor given by name", host: none, env: devices("1"), here: "refused: was given none of its MIG devices"},
		{name: "nor one that has some", host: second, env: devices("1"), here: "refused: partitioned by MIG and of no use by itself"},
		{name: "an index that was not given", host: second, env: devices("1:0"), here: "refused: unknown MIG device"},
		{name: "the right to configure brings nothing more", host: first, env: append(devices("all"), configure), spec: admin, here: "GPU 0, GPU 2, 9/0 of GPU 1, the right `mig/config`"},
		{name: "unless all MIG devices are here", host: all, env: append(devices("all"), configure), spec: admin, here: "GPU 0, GPU 1, GPU 2, 5/0 of GPU 1, 5/1 of GPU 1, 9/0 of GPU 1, the right `mig/config`"},
	}}.run(t)
	plan, err := resolveWith(t, none.cfg, newSpec("NVIDIA_VISIBLE_DEVICES=all"), none.ask())
	if err != nil || !slices.ContainsFunc(plan.Decisions, func(d Decision) bool {
		return d.Subject == "GPU 1" && d.Decision == "not given" && strings.Contains(d.Reason, "given none of its MIG devices")
	}) {
		t.Errorf("no decision says why GPU 1 is not given: %+v, %v", plan.Decisions, err)
	}
}
