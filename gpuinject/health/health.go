package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// Name is the file in the state directory.
const Name = "health.json"

// Valid is how long the file counts after it was written. The watcher writes it every Interval.
const (
	Valid    = 90 * time.Second
	Interval = 30 * time.Second
)

// maxSize bounds the file, in bytes: some hundreds for each GPU.
const maxSize = 256 << 10

// States of a GPU.
const (
	// OK: nothing is known to be wrong.
	OK = "ok"
	// Warn: the GPU should be serviced, but works.
	Warn = "warn"
	// Refuse: the GPU, or what runs on it, fails until it is reset or the host reboots.
	Refuse = "refuse"
)

// File is the content of the file.
type File struct {
	// Boot is the kernel's boot id, and Driver the version of the loaded module.
	Boot   string `json:"boot"`
	Driver string `json:"driver"`
	// Module identifies the load of the module: it changes when the module is loaded again.
	Module uint64 `json:"module"`
	// Time is when the file was written.
	Time time.Time `json:"time"`
	// Unwatched says which GPUs are only polled and why, or is "".
	Unwatched string `json:"unwatched,omitempty"`
	GPUs      []GPU  `json:"gpus"`
}

// GPU is the health of a GPU.
type GPU struct {
	UUID string `json:"uuid,omitempty"`
	PCI  string `json:"pci"`
	// State is OK, Warn or Refuse. An unknown state counts as OK.
	State string `json:"state"`
	// Reason is why the state is not OK, Fix what to do about it, each in one line. Since is when
	// that was first seen.
	Reason string    `json:"reason,omitempty"`
	Fix    string    `json:"fix,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	// Xids are the critical Xids since the module was loaded, the latest of each number.
	Xids []Xid `json:"xids,omitempty"`
}

// Xid is an error that the driver reported about a GPU.
type Xid struct {
	Number uint64    `json:"number"`
	Time   time.Time `json:"time"`
}

// String describes a sick GPU in one line.
func (g GPU) String() string {
	return fmt.Sprintf("unhealthy since %s: %.512s: %.256s", g.Since.Format(time.DateTime), g.Reason, g.Fix)
}

// GPU returns the health of the GPU with this PCI address, as procfs has it, if the GPU is sick.
func (f File) GPU(pci string) (g GPU, sick bool) {
	for _, g := range f.GPUs {
		if strings.EqualFold(g.PCI, pci) && g.IsSick() {
			return g, true
		}
	}
	return GPU{}, false
}

// IsSick reports whether the health of the GPU is known and not OK.
func (g *GPU) IsSick() bool { return g != nil && (g.State == Warn || g.State == Refuse) }

// Load reads the file in a state directory, however old it is. The error is fs.ErrNotExist if there
// is none.
func Load(stateDir string) (f File, err error) {
	name := filepath.Join(stateDir, Name)
	data, _, err := trusted.Read(name, maxSize)
	if err != nil {
		return File{}, err
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return File{}, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// Read reads the file in a state directory if it is valid now, for this boot and this driver. No
// file is no error: nothing watches this host. For any other file that does not count, the error
// says why, and File is empty.
func Read(stateDir, driver string, now time.Time) (File, error) {
	f, err := Load(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, nil
	}
	if err != nil {
		return File{}, err
	}
	name := filepath.Join(stateDir, Name)
	switch age := now.Sub(f.Time); {
	case age > Valid || age < -Valid:
		return File{}, fmt.Errorf("%s is of %s: nothing watches this host's GPUs now", name, f.Time.Format(time.DateTime))
	case f.Driver != driver:
		return File{}, fmt.Errorf("%s is of driver %.64q", name, f.Driver)
	}
	for _, g := range f.GPUs {
		// Without a sick GPU another boot's file says what an absent one says.
		if g.IsSick() && f.Boot != BootID() { // guard: grant: no health of another boot
			return File{}, fmt.Errorf("%s is of another boot", name)
		}
	}
	return f, nil
}

// Write writes the file. A reader sees the old one or the new one.
func Write(stateDir string, f File) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(stateDir, Name), append(data, '\n'), 0o644)
}

// BootID returns the kernel's boot id, or "".
func BootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}
