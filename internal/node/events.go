package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/check"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cmdline"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubeapi"
)

// Reasons of the node's events: whether it is ready, whether its GPUs are healthy, and what was done
// with an idle container.
const (
	readinessReason = "ShimReadiness"
	healthReason    = "GPUHealth"
	idleReason      = "IdleContainer"
)

// ReportIdle reports what was done with an idle container.
func (k *Keeper) ReportIdle(ctx context.Context, text string) {
	if k.API == nil {
		return
	}
	if err := k.API.Report(ctx, kubeapi.Normal, idleReason, text); err != nil {
		fmt.Fprintf(k.Installer.Err, "nvidia-shimctl: %s\n", cmdline.Plain(err))
	}
}

// repeat is how often a warning that lasts is reported again: the API server forgets an event after
// an hour.
const repeat = 50 * time.Minute

// report reports what is new since the last report. What the API server does not take is reported in
// the next round.
func (k *Keeper) report(ctx context.Context, findings []check.Finding, now time.Time) error {
	for _, e := range newEvents(findings, k.reported, now) {
		if err := k.API.Report(ctx, e.kind, e.reason, e.message); err != nil {
			return err
		}
		k.reported = remember(k.reported, e)
	}
	return nil
}

// remember keeps the last event of each reason.
func remember(reported []event, e event) []event {
	return append(slices.DeleteFunc(reported, func(r event) bool { return r.reason == e.reason }), e)
}

// newEvents returns the events about the findings of check that were not reported yet, or long ago.
func newEvents(findings []check.Finding, reported []event, now time.Time) (list []event) {
	ready := problems(findings)
	if len(ready) == 0 {
		ready = []check.Finding{{Level: check.OK, Message: "check finds no problem"}}
	}
	health := slices.DeleteFunc(slices.Clone(findings), func(f check.Finding) bool { return f.Check != "health" })
	for _, e := range []event{newEvent(readinessReason, ready, now), newEvent(healthReason, health, now)} {
		known := slices.ContainsFunc(reported, func(r event) bool {
			return r.reason == e.reason && r.message == e.message && (e.kind == kubeapi.Normal || now.Sub(r.time) < repeat)
		})
		if e.message != "" && !known {
			list = append(list, e)
		}
	}
	return list
}

// newEvent has what is wrong, or else what is fine.
func newEvent(reason string, findings []check.Finding, now time.Time) event {
	var fine, wrong []string
	for _, f := range findings {
		if f.Level == check.OK {
			fine = append(fine, f.Message)
		} else {
			wrong = append(wrong, f.Message+"; fix: "+f.Fix)
		}
	}
	if len(wrong) > 0 {
		return event{kubeapi.Warning, reason, strings.Join(wrong, ". "), now}
	}
	return event{kubeapi.Normal, reason, strings.Join(fine, ". "), now}
}
