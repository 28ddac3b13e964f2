package probe

import (
	"errors"
	"os"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// CgroupFD is the descriptor of Questions.Cgroup in the program.
const CgroupFD = 4

// Causes of an error of SetMemoryLimits and ReadMemoryLimits. An error without any of them is one
// of the driver, such as a lost GPU, or of the program.
var (
	// ErrNoMemoryLimits means that the driver has no memory limits: it is older than 615.
	ErrNoMemoryLimits = errors.New("the driver has no memory limits")
	// ErrNotLimitable means that the GPU cannot be limited: it is divided by MIG, or the driver's
	// memory limits are off (module option RmMemacctMode=0).
	ErrNotLimitable = errors.New("the GPU cannot be limited")
	// ErrNoController means that the cgroup has no files of the controller dmem, which the driver
	// uses on this host.
	ErrNoController = errors.New("the cgroup has no controller dmem")
	// ErrNotCgroup2 means that the directory is not a cgroup of version 2, or is its root.
	ErrNotCgroup2 = errors.New("not a cgroup of version 2")
	// ErrCgroupGone means that the cgroup was removed, with its hard limits. A soft limit stays in
	// its ancestors: see ReleaseMemory.
	ErrCgroupGone = errors.New("the cgroup is gone")
	// ErrInvalidLimit means that a limit is more than the GPU's memory, or soft more than hard.
	ErrInvalidLimit = errors.New("invalid memory limit")
	// ErrBelowUse means that processes of the cgroup use more than the new hard limit.
	ErrBelowUse = errors.New("more memory is in use")
	// ErrNotPersistent means that persistence mode is off: the driver would forget the limit when the
	// last process closes the GPU.
	ErrNotPersistent = errors.New("persistence mode is off")
	// ErrNotPermitted means that the driver accepts limits of root of the host only.
	ErrNotPermitted = errors.New("not permitted")
	// ErrNotKept means that the driver accepted a limit, but reports another one.
	ErrNotKept = errors.New("the driver has not kept the limit")
)

// memoryErrors are the causes that a program may name.
var memoryErrors = []error{
	ErrNoMemoryLimits, ErrNotLimitable, ErrNoController, ErrNotCgroup2, ErrCgroupGone,
	ErrInvalidLimit, ErrBelowUse, ErrNotPersistent, ErrNotPermitted, ErrNotKept,
}

// MemoryCause returns the text that names the cause of err, or "".
func MemoryCause(err error) string {
	for _, cause := range memoryErrors {
		if errors.Is(err, cause) {
			return cause.Error()
		}
	}
	return ""
}

// SetMemoryLimits sets limits of the cgroup, an open directory, and reads each back. After an error
// every GPU has the limits that it had before, unless the error says otherwise or the driver did not
// answer in time: then any of them may be set. To take limits back, set them to none before the cgroup
// is removed; that takes away each that it can.
func SetMemoryLimits(ask func(Questions) Answers, cgroup *os.File, limits []MemoryLimit) error {
	if len(limits) == 0 {
		return nil
	}
	_, err := askMemory(ask, Questions{Cgroup: cgroup, SetMemory: limits})
	return err
}

// ReadMemoryLimits returns the limits of the cgroup, an open directory, and what it uses, for the
// GPUs with these UUIDs. A GPU for which the driver counts nothing is not in the list: never limited
// in this cgroup, if the driver does not use the controller dmem.
func ReadMemoryLimits(ask func(Questions) Answers, cgroup *os.File, uuids []string) ([]MemoryUse, error) {
	if len(uuids) == 0 {
		return nil, nil
	}
	return askMemory(ask, Questions{Cgroup: cgroup, ReadMemory: uuids})
}

// ReleaseMemory releases what a cgroup had requested that was removed with a soft limit. The driver
// adds soft limits to those of every cgroup above, where they stay. cgroup, an open directory, is the
// nearest of these that is left. No more is released than the cgroups below it do not request.
func ReleaseMemory(ask func(Questions) Answers, cgroup *os.File, requested []MemoryLimit) error {
	if len(requested) == 0 {
		return nil
	}
	_, err := askMemory(ask, Questions{Cgroup: cgroup, ReleaseMemory: requested})
	return err
}

func askMemory(ask func(Questions) Answers, q Questions) ([]MemoryUse, error) {
	a := ask(q)
	switch {
	case a.MemoryError != "":
		return nil, memoryError(a.MemoryError, a.MemoryCause)
	case a.MemoryUse == nil:
		return nil, errors.New(version.Ctl + " does not know this question: it is of another version")
	}
	return *a.MemoryUse, nil
}

// limitError is an error text of the program with its cause.
type limitError struct {
	text  string
	cause error
}

func (e limitError) Error() string { return e.text }
func (e limitError) Unwrap() error { return e.cause }

func memoryError(text, name string) error {
	for _, cause := range memoryErrors {
		if cause.Error() == name {
			return limitError{text, cause}
		}
	}
	return errors.New(text)
}
