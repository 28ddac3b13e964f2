package gpuinject

import (
	"os"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// earlyManifest is the manifest that is read while the GPUs are looked at. Both are
// files that do not depend on each other; what is made of them is decided afterwards.
type earlyManifest struct {
	// loaded is closed when state and manifest are known, done when fresh is.
	loaded, done chan struct{}
	state        *view.State
	manifest     *manifest
	// fresh is what Files.Fresh said for the capabilities of the request.
	fresh    bool
	panicked any
}

// readEarly begins to read the manifest, where this host has a state directory: a
// container that is refused before it is needed leaves no trace.
func (j *Job) readEarly() {
	host, caps, ahead := j.Config.Host, j.Request.Capabilities, j.ahead
	e := &earlyManifest{loaded: make(chan struct{}), done: make(chan struct{})}
	j.early = e
	go func() {
		defer close(e.done)
		// Nobody recovers on this goroutine: a panic goes where the result is awaited.
		defer func() { e.panicked = recover() }()
		if e.load(host.StateDir, ahead); e.manifest != nil {
			e.fresh = e.manifest.Files.Fresh(host, caps)
		}
	}()
}

func (e *earlyManifest) load(dir string, ahead *Ahead) {
	defer close(e.loaded)
	if _, err := os.Lstat(dir); err != nil {
		return
	}
	state, err := view.OpenState(dir)
	if err != nil {
		return // openState will say it
	}
	e.state = state
	if m, ok := ahead.load(state, manifestName); ok {
		e.manifest = m
	}
}

// read returns what was read, before it is known whether the files are fresh; nothing
// where reading was not begun.
func (e *earlyManifest) read() (*view.State, *manifest) {
	if e == nil {
		return nil, nil
	}
	<-e.loaded
	return e.state, e.manifest
}

// isFresh tells whether the files of m are known to be fresh.
func (e *earlyManifest) isFresh(m *manifest) bool {
	e.wait()
	return e != nil && e.manifest == m && e.fresh
}

// wait returns when nothing is read any more.
func (e *earlyManifest) wait() {
	if e == nil {
		return
	}
	<-e.done
	if e.panicked != nil {
		panic(e.panicked)
	}
}
