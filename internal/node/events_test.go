package node

import (
	"slices"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/check"
)

// What changes is reported once; a warning that lasts is reported again before it is forgotten.
func TestEventsSayWhatChanged(t *testing.T) {
	const noProblem, watched = "Normal ShimReadiness check finds no problem", "Normal GPUHealth 2 GPUs are watched"
	runc := check.Finding{Check: "runc", Level: check.Problem, Message: "runc is old", Fix: "upgrade it"}
	warned := check.Finding{Check: "cdi", Level: check.Warning, Message: "a file is old", Fix: "make it again"}
	fine := check.Finding{Check: "health", Level: check.OK, Message: "2 GPUs are watched"}
	sick := check.Finding{Check: "health", Level: check.Warning, Message: "GPU 0 is unhealthy", Fix: "reboot"}
	other := check.Finding{Check: "health", Level: check.Warning, Message: "GPU 1 is unhealthy", Fix: "reset"}
	var reported []event
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for i, tc := range []struct {
		after    time.Duration
		findings []check.Finding
		want     []string
	}{
		{0, []check.Finding{warned, fine}, []string{noProblem, watched}},
		{24 * time.Hour, []check.Finding{fine}, nil},
		{0, []check.Finding{runc, fine, sick}, []string{"Warning ShimReadiness runc is old; fix: upgrade it", "Warning GPUHealth GPU 0 is unhealthy; fix: reboot"}},
		{repeat - time.Second, []check.Finding{runc, fine, sick}, nil},
		{time.Second, []check.Finding{fine, sick}, []string{noProblem, "Warning GPUHealth GPU 0 is unhealthy; fix: reboot"}},
		{0, []check.Finding{fine, sick, other}, []string{"Warning GPUHealth GPU 0 is unhealthy; fix: reboot. GPU 1 is unhealthy; fix: reset"}},
		{0, []check.Finding{fine, other}, []string{"Warning GPUHealth GPU 1 is unhealthy; fix: reset"}},
		{0, []check.Finding{fine}, []string{watched}},
		{0, nil, nil}, // without a GPU
	} {
		now = now.Add(tc.after)
		var got []string
		for _, e := range newEvents(tc.findings, reported, now) {
			got = append(got, e.kind+" "+e.reason+" "+e.message)
			reported = remember(reported, e)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%d: %q, want %q", i, got, tc.want)
		}
	}
}
