package gpuinject

import (
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// What callers of this package need of the packages below it.
type (
	// Ask sends all questions to the probe in one call.
	Ask = question.Ask
	// Error describes a failed or refused request in one line, Kind its class.
	Error = verdict.Error
	Kind  = verdict.Kind
)

// Kinds of errors.
const (
	Internal     = verdict.KindInternal
	Invalid      = verdict.KindInvalid
	Precondition = verdict.KindPrecondition
	Denied       = verdict.KindDenied
)

// ViewDir is where a container finds the driver, NoteNoCLibrary how the note about an image without
// a C library begins.
const (
	ViewDir        = view.Dir
	NoteNoCLibrary = place.NoteNoCLibrary
)
