package status

import (
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// idleName is the file in the state directory in which package idle says what it knows.
const idleName = "idle.json"

// IdleFile is the content of that file, by Record.Key.
type IdleFile struct {
	Time       time.Time       `json:"time"`
	Containers map[string]Idle `json:"containers"`
}

// Idle is the idleness of a container that asks to be suspended when it is idle.
type Idle struct {
	// After is how long its GPUs have to do nothing, in seconds.
	After float64 `json:"after_seconds"`
	// Since is since when they do nothing. It is zero if they work or if that is not known. Reason says
	// why then, or why the container could not be suspended.
	Since  time.Time `json:"since,omitzero"`
	Reason string    `json:"reason,omitempty"`
	// Suspended is true if the container was suspended for that.
	Suspended bool `json:"suspended,omitempty"`
}

// Key identifies a container on this host.
func (r Record) Key() string { return r.Namespace + "/" + r.ID }

// IdleAfter is how long the GPUs of the container have to do nothing before it is suspended, 0 if it
// is not suspended for that.
func (r Record) IdleAfter() time.Duration {
	return time.Duration(r.plan.SuspendIdle * float64(time.Second))
}

// ReadIdle reads the file in a state directory, which is empty if there is none, if it is old, or if
// another user could have written it.
func ReadIdle(stateDir string) (f IdleFile) {
	data, _, err := trusted.Read(filepath.Join(stateDir, idleName), maxRecord)
	if err != nil || json.Unmarshal(data, &f) != nil || time.Since(f.Time).Abs() > health.Valid {
		return IdleFile{}
	}
	return f
}

// WriteIdle writes the file.
func WriteIdle(stateDir string, f IdleFile) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(stateDir, idleName), append(data, '\n'), 0o600)
}
