package shim

import (
	"errors"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// addOutcome adds the outcome of Create to the events of the host, if the container asks for GPUs
// or was refused.
func addOutcome(c gpuinject.Container, e state.Event, err error) {
	e.Kind = state.Created
	if err != nil {
		e.Kind, e.Class, e.Reason, e.Who = state.Refused, "runtime", err.Error(), c.ID
		if who := c.Input.Container; who.Pod != "" {
			e.Who = who.Namespace + "/" + who.Pod
		}
		var refused *verdict.Error
		if errors.As(err, &refused) {
			e.Class = refused.Kind.String()
		}
	} else if !c.Asks {
		return
	}
	addEvent(c.Config, e)
}

// addEvent adds an event. No caller depends on its success.
func addEvent(cfg *config.Config, e state.Event) {
	if cfg == nil {
		return // the configuration is invalid, or the container does not ask for GPUs
	}
	if st, err := state.Open(cfg.Host.StateDir, false); err == nil {
		st.AddEvent(e)
	}
}
