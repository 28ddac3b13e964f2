package gpuinject

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// Ahead is a look at a bundle before anybody asked for its container. What it keeps was
// made of the bytes of files, and serves where they have the same bytes when they are
// read again. What the driver says of the GPUs and of their MIG devices serves for a
// moment, and for each that the container gets it is read again before that starts. nil is one that saw nothing.
type Ahead struct {
	raw      []byte
	mightAsk bool
	// bundle is what raw says, nil where it does not ask. It is used once.
	bundle *bundle.Bundle
	// body is what manifest was made of.
	body     []byte
	manifest *manifest
	// listed is closed when the GPUs were looked at; inventory is nil where that failed,
	// or somebody has it.
	listed    chan struct{}
	inventory *device.Inventory
	roots     device.Roots
	at        time.Time
}

// aheadFor is how long what the driver said of the GPUs serves.
const aheadFor = 200 * time.Millisecond

// LookAhead reads what the container of the bundle dir would be made from. It changes
// nothing, and what fails is for Examine and Resolve to tell.
func LookAhead(dir string, load func() (*config.Config, error)) *Ahead {
	raw, mode, err := bundle.Read(dir)
	if err != nil {
		return nil
	}
	a := &Ahead{raw: raw, mightAsk: mightAsk(raw)}
	if !a.mightAsk {
		return a
	}
	b, err := bundle.Parse(dir, raw, mode)
	if err != nil {
		return a
	}
	a.bundle = b
	if job, err := examine(b, load); err == nil {
		a.listGPUs(Roots(job.Config.Host), slices.Equal(job.Request.Devices, []string{request.All}))
		a.readManifest(job.Config.Host.StateDir)
	}
	return a
}

// listGPUs begins to look at the GPUs: with eight of them that takes a millisecond. With
// divided it also looks at their MIG devices, which takes another one with sixteen.
func (a *Ahead) listGPUs(roots device.Roots, divided bool) {
	a.roots, a.at, a.listed = roots, time.Now(), make(chan struct{})
	go func() {
		defer close(a.listed)
		// What panics here panics again when it is asked for, where it is told.
		defer func() { _ = recover() }()
		inv, err := device.Discover(roots)
		if err == nil && divided {
			_, _ = inv.Seen() // what fails is tried again
		}
		a.inventory = inv
	}()
}

// gpus is device.Discover; confirm says that what the driver says of the GPUs is to be
// read again.
func (a *Ahead) gpus(roots device.Roots) (inv *device.Inventory, confirm bool, err error) {
	if a != nil && a.listed != nil {
		<-a.listed
		inv, a.inventory = a.inventory, nil
		if inv != nil && roots == a.roots && time.Since(a.at) < aheadFor && inv.Unchanged() {
			return inv, true, nil
		}
	}
	inv, err = device.Discover(roots)
	return inv, false, err
}

// readManifest reads the manifest, where this host has a state directory.
func (a *Ahead) readManifest(dir string) {
	if _, err := os.Lstat(dir); err != nil {
		return
	}
	state, err := view.OpenState(dir)
	if err != nil {
		return
	}
	body, ok := state.Read(manifestName)
	if !ok {
		return
	}
	var m manifest
	if json.Unmarshal(body, &m) == nil {
		a.body, a.manifest = body, &m
	}
}

// asks is mightAsk.
func (a *Ahead) asks(raw []byte) bool {
	if a != nil && bytes.Equal(raw, a.raw) {
		return a.mightAsk
	}
	return mightAsk(raw)
}

// parse is bundle.Parse, whose result belongs to the one caller who gets it.
func (a *Ahead) parse(dir string, raw []byte, mode os.FileMode) (*bundle.Bundle, error) {
	if a != nil && a.bundle != nil && bytes.Equal(raw, a.raw) {
		b := a.bundle.At(dir, mode)
		a.bundle = nil
		return b, nil
	}
	return bundle.Parse(dir, raw, mode)
}

// load is State.Load of a manifest.
func (a *Ahead) load(state *view.State, name string) (*manifest, bool) {
	body, ok := state.Read(name)
	if !ok {
		return nil, false
	}
	if a != nil && a.manifest != nil && bytes.Equal(body, a.body) {
		return a.manifest, true
	}
	var m manifest
	return &m, json.Unmarshal(body, &m) == nil
}
