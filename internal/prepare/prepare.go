package prepare

import (
	"context"
	"errors"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	gpuhost "github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/gpumemory"
)

// Run prepares this host. The error says what could not be read; the report says what could not be
// done.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &Report{
		DryRun: o.DryRun, PCI: []string{}, Modules: []Module{}, Nodes: []Node{}, Notes: []string{},
	}
	r.sweep(o)
	reason := nothingToPrepare(o.Host)
	if reason == "" {
		gpus, err := device.Display(o.Host)
		if err != nil {
			return nil, err
		}
		r.PCI = append(r.PCI, gpus...)
		if len(gpus) == 0 && !device.ModuleLoaded(o.Host, device.ModuleNVIDIA) {
			reason = "there is no NVIDIA GPU on the PCI bus of this host"
		}
	}
	if reason != "" {
		r.Notes, r.Ready = append(r.Notes, reason+": nothing to do"), true
		return r, nil
	}
	r.modules(ctx, o)
	inv, err := device.Discover(o.Host)
	switch {
	case errors.Is(err, device.ErrNoDriver):
		// The module's line says what to do.
		if o.DryRun && r.allGood() {
			r.Notes = append(r.Notes, "the nodes are not known before the modules are loaded")
		}
	case err != nil:
		return nil, err
	default:
		expected, err := inv.Expected(o.Channels)
		if err != nil {
			return nil, err
		}
		r.nodes(o, expected)
	}
	r.Ready = r.allGood()
	return r, nil
}

// sweep takes back limits of GPU memory, and notes those that it cannot take back.
func (r *Report) sweep(o Options) {
	if o.Ask == nil || o.DryRun {
		return
	}
	st, err := state.Open(o.Host.StateDir, true)
	if err != nil {
		r.Notes = append(r.Notes, err.Error())
		return
	}
	for _, err := range (gpumemory.Host{State: st, Ask: o.Ask}).Sweep() {
		r.Notes = append(r.Notes, err.Error())
	}
}

// nothingToPrepare says why this program must not make the nodes of this host, "" if it may: they
// belong to another driver, or the host is a container.
func nothingToPrepare(h config.Host) string {
	found, err := gpuhost.Discover(h)
	switch {
	case err != nil:
	case found.Platform != "":
		return "the driver is that of " + gpuhost.PlatformTitle(found.Platform)
	case gpuhost.IsContainer(h, found.DriverVersion):
		// With all nodes it would have access to every GPU.
		return "this host is a container, which has the nodes that it was given"
	}
	return ""
}
