package shim

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// containerState is what has happened to a container with GPUs. Whether its processes run, are
// frozen or have ended is known to the embedded service alone.
type containerState int

const (
	// unknown means that no container with GPUs has this id.
	unknown containerState = iota
	// creating lasts until the mask is attached, or until Delete if that fails.
	creating
	// ready means that the mask is attached and GPU memory is on the GPUs.
	ready
	// suspended means that GPU memory is on the host, or that it could not all be moved back.
	suspended
	// restoring lasts until Start has restored the container from a checkpoint.
	restoring
	// notRestored means that the restore has failed and the container was killed.
	notRestored
	states // how many there are
)

// call is a call of the Task API that depends on the state of the container. All others do not.
type call int

const (
	callCreate    call = iota
	callStart          // of the container
	callStartExec      // of a process in it
	callExec
	callPause
	callResume
	callCheckpoint
	callPlace // Update with gpuinject.AnnotationResumeGPU
	callLimit // Update with an annotation of package memlimit
	callDelete
	calls // how many there are
)

// rule is what this service does with a call.
type rule int

const (
	deny rule = iota // it returns an error
	pass             // the embedded service does it alone, or refuses it
	acts             // this service does its part
)

// rules holds what each call may do in each state. No process is started in a container without its
// mask (invariant I8).
var rules = [calls][states]rule{
	//               unknown, creating, ready, suspended, restoring, notRestored
	callCreate:     {acts, deny, deny, deny, deny, deny},
	callStart:      {pass, deny, pass, pass, acts, deny}, // guard: shim: no start without mask
	callStartExec:  {pass, deny, pass, pass, deny, deny},
	callExec:       {pass, deny, pass, pass, deny, deny}, // guard: shim: no exec before the restored mask is seen
	callPause:      {pass, pass, acts, acts, pass, deny}, // guard: shim: nothing with a container that was not restored
	callResume:     {pass, pass, pass, acts, pass, deny},
	callCheckpoint: {pass, pass, acts, acts, pass, deny},
	callPlace:      {deny, deny, deny, acts, deny, deny},
	callLimit:      {deny, deny, acts, acts, deny, deny},
	callDelete:     {pass, acts, acts, acts, acts, acts},
}

// permit returns what this service does with a call for the container c with this id. The error of
// a call that is denied has the class FailedPrecondition, or AlreadyExists for Create.
func (c gpuContainer) permit(what call, id string) (rule, error) {
	does := rules[what][c.state]
	if does != deny {
		return does, nil
	}
	text := "nvidia: container %s was not created completely: no process can be started in it; delete it"
	switch {
	case what == callCreate:
		return deny, fmt.Errorf("container %s: %w", id, errdefs.ErrAlreadyExists)
	case what == callPlace:
		return deny, notSuspended(id)
	case what == callLimit:
		text = "nvidia: container %s has no GPU, or is not created completely: its GPU memory cannot be limited"
	case c.state == restoring:
		text = "nvidia: container %s is not restored yet: no process can be started in it"
	case c.state == notRestored:
		text = "nvidia: container %s could not be restored: create it again"
	}
	return deny, &classified{fmt.Errorf(text, id), errdefs.ErrFailedPrecondition}
}

// notSuspended is the error of a call that sends the memory of a suspended container elsewhere.
func notSuspended(id string) error {
	err := fmt.Errorf("nvidia: container %s is not suspended, so its GPU memory cannot go to another GPU", id)
	return &classified{err, errdefs.ErrFailedPrecondition}
}
