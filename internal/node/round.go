package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cmdline"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// Keep makes rounds until ctx ends or the server of the readiness probe fails.
func (k *Keeper) Keep(ctx context.Context, interval time.Duration, failed <-chan error) error {
	for {
		err := k.Round(ctx)
		if ctx.Err() != nil {
			return nil // a change that it began is complete
		}
		if err != nil && !errors.Is(err, ErrProblem) {
			fmt.Fprintf(k.Installer.Err, "nvidia-shimctl: %s\n", cmdline.Plain(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-time.After(interval):
		}
	}
}

// Round brings the node into the state that its labels and the command line ask for.
func (k *Keeper) Round(ctx context.Context) error {
	err := k.round(ctx)
	k.ready.Store(err == nil)
	return err
}

// ServeHTTP answers the pod's readiness probe: a rolling update waits for it.
func (k *Keeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != "/readyz":
		http.NotFound(w, r)
	case !k.ready.Load():
		http.Error(w, "not ready", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ok")
	}
}

func (k *Keeper) round(ctx context.Context) error {
	var labels map[string]string
	if k.API != nil {
		var err error
		if labels, err = k.API.Labels(ctx); err != nil {
			return err
		}
	}
	now := any(labels[VersionLabel])
	if now == "" {
		now = nil
	}
	if k.Uninstall || labels[RemoveLabel] == "true" {
		// Remove the version last: a node without it has nothing left to remove.
		if err := errors.Join(k.setLabels(ctx, labels, nil, now), k.remove(ctx)); err != nil {
			return err
		}
		return k.setLabels(ctx, labels, nil, nil)
	}
	installed, findings, err := k.install(ctx)
	if ctx.Err() != nil {
		return nil // the next pod continues
	}
	k.print(findings)
	if k.API != nil {
		if err := k.report(ctx, findings, time.Now()); err != nil { // the node is no less ready
			fmt.Fprintf(k.Installer.Err, "nvidia-shimctl: %s\n", cmdline.Plain(err))
		}
	}
	ready := len(problems(findings)) == 0
	if installed {
		now = version.Version
	}
	err = errors.Join(err, k.setLabels(ctx, labels, fmt.Sprint(ready), now))
	if err == nil && !ready {
		return ErrProblem
	}
	return err
}

// setLabels sets the labels of the node if they differ; nil removes a label.
func (k *Keeper) setLabels(ctx context.Context, labels map[string]string, ready, version any) error {
	want := map[string]any{ReadyLabel: ready, VersionLabel: version}
	for name, value := range want {
		have, ok := labels[name]
		if ok && have == value || !ok && value == nil {
			delete(want, name)
		}
	}
	if k.API == nil || len(want) == 0 {
		return nil
	}
	return k.API.SetLabels(ctx, want)
}
