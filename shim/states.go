package shim

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
	// deleting means that Delete has taken back the limits of GPU memory, even if it failed then.
	deleting
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
	//               unknown, creating, ready, suspended, restoring, notRestored, deleting
	callCreate:     {acts, deny, deny, deny, deny, deny, deny},
	callStart:      {pass, deny, pass, pass, acts, deny, deny}, // guard: shim: no start without mask
	callStartExec:  {pass, deny, pass, pass, deny, deny, deny},
	callExec:       {pass, deny, pass, pass, deny, deny, deny}, // guard: shim: no exec before the restored mask is seen
	callPause:      {pass, pass, acts, acts, pass, deny, deny}, // guard: shim: nothing with a container that was not restored
	callResume:     {pass, pass, pass, acts, pass, deny, deny},
	callCheckpoint: {pass, pass, acts, acts, pass, deny, deny},
	callPlace:      {deny, deny, deny, acts, deny, deny, deny},
	callLimit:      {deny, deny, acts, acts, deny, deny, deny},
	callDelete:     {pass, acts, acts, acts, acts, acts, acts},
}
