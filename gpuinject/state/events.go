package state

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// maxEvents is the size of a full file, in bytes. A variable for the tests.
var maxEvents int64 = 1 << 20

// Kinds of events.
const (
	// Created: a container that asks for GPUs was created.
	Created = "created"
	// Refused: creation of a container was refused or failed.
	Refused = "refused"
	// ViewBuilt: this host did not have the view that a container needs.
	ViewBuilt = "view_built"
	// ProbeFailed: NVML or the kubelet did not answer.
	ProbeFailed = "probe_failed"
	// Suspended: a container was suspended because it was idle.
	Suspended = "suspended"
)

// Event is something that happened on this host, for people and statistics. The shim never reads it.
type Event struct {
	Time time.Time `json:"time"`
	Kind string    `json:"kind"`
	// GPU is true if the container got one. Seconds is how long its creation took, OwnSeconds the
	// part before runc.
	GPU        bool    `json:"gpu,omitempty"`
	Seconds    float64 `json:"seconds,omitempty"`
	OwnSeconds float64 `json:"own_seconds,omitempty"`
	// Class is the class of a refusal, Reason the beginning of its text, Who the container or its
	// pod.
	Class  string `json:"class,omitempty"`
	Reason string `json:"reason,omitempty"`
	Who    string `json:"who,omitempty"`
}

// AddEvent appends an event to the file of this host, if it can: nothing depends on it.
func (s *State) AddEvent(e Event) {
	if s.readOnly {
		return
	}
	e.Time = time.Now().UTC().Truncate(time.Millisecond)
	e.Reason, e.Who = cut(e.Reason), cut(e.Who)
	line, err := json.Marshal(e)
	if err != nil {
		return
	}
	name := filepath.Join(s.dir, eventsName)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	// The file can grow beyond full while another process holds the lock.
	if err != nil || info.Size() >= 2*maxEvents {
		return
	}
	_, _ = f.Write(append(line, '\n')) // in one call: lines do not mix
	if info.Size() < maxEvents {
		return
	}
	lock, err := s.Lock("events.lock", 0)
	if err != nil {
		return
	}
	defer lock.Close()
	if now, err := os.Lstat(name); err == nil && os.SameFile(info, now) {
		_ = os.Rename(name, filepath.Join(s.dir, olderEventsName))
	}
}

// maxText bounds a text of an event, in bytes.
const maxText = 256

func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// Events reads the events of a state directory.
type Events struct {
	Dir string
	// offsets maps inodes to how far the files were read; earlier has those of the previous call,
	// because a file may be renamed between two reads.
	offsets, earlier map[uint64]int64
}

// Next returns the events since the previous call. all is false if earlier events may be missing.
func (e *Events) Next() (events []Event, all bool) {
	first := e.offsets == nil
	before := map[uint64]int64{}
	maps.Copy(before, e.earlier)
	maps.Copy(before, e.offsets)
	e.earlier, e.offsets = e.offsets, map[uint64]int64{}
	older := e.read(olderEventsName, before)
	events = append(older, e.read(eventsName, before)...)
	return events, !first || len(older) == 0
}

// read returns the rest of a file that only root can change.
func (e *Events) read(name string, before map[uint64]int64) (events []Event) {
	data, st, err := trusted.Read(filepath.Join(e.Dir, name), maxSize)
	if err != nil {
		return nil
	}
	offset := before[st.Ino]
	if offset > int64(len(data)) {
		offset = 0 // another file has this inode now
	}
	end := int64(bytes.LastIndexByte(data, '\n') + 1) // the last line may be incomplete
	e.offsets[st.Ino] = max(offset, end)
	for line := range bytes.Lines(data[min(offset, end):end]) {
		var event Event
		if json.Unmarshal(line, &event) == nil {
			events = append(events, event)
		}
	}
	return events
}
