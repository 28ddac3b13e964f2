package gpuinject

import (
	"os"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// earlyManifest is the manifest that is read while the GPUs are looked at. Both are
// files that do not depend on each other; what is made of them is decided afterwards.
type earlyManifest struct {
	done     chan struct{}
	state    *view.State
	manifest *manifest
	// fresh is what Files.Fresh said for the capabilities of the request.
	fresh    bool
	panicked any
}

// readEarly begins to read the manifest, where this host has a state directory: a
// container that is refused before it is needed leaves no trace.
func (j *Job) readEarly() {
	host, caps, ahead := j.Config.Host, j.Request.Capabilities, j.ahead
	e := &earlyManifest{done: make(chan struct{})}
	j.early = e
	go func() {
		defer close(e.done)
		// Nobody recovers on this goroutine: a panic goes where the result is awaited.
		defer func() { e.panicked = recover() }()
		if _, err := os.Lstat(host.StateDir); err != nil {
			return
		}
		state, err := view.OpenState(host.StateDir)
		if err != nil {
			return // openState will say it
		}
		e.state = state
		if m, ok := ahead.load(state, manifestName); ok {
			e.manifest, e.fresh = m, m.Files.Fresh(host, caps)
		}
	}()
}

// wait returns what was read; nothing where reading was not begun.
func (e *earlyManifest) wait() earlyManifest {
	if e == nil {
		return earlyManifest{}
	}
	<-e.done
	if e.panicked != nil {
		panic(e.panicked)
	}
	return *e
}
