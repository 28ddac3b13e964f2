package record

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// Name is the file in a bundle.
const Name = "nvidia.json"

// Record is the part of a container's record that tests check.
type Record struct {
	GPU           bool
	Reason        string
	Error         string
	Asked         []string
	Grant         string
	DriverVersion string `json:"driver_version"`
	GPUs          []GPU
	MIG           []struct{ UUID string }
	Capabilities  []string
	Classes       []string
	IMEX          []int
	Devices       []Device
	Libraries     []string
	Binaries      []string
	Mounts        []struct{ Source, Destination string }
	Proc          struct {
		Masked bool
		GPUs   []string
	}
	Linker       struct{ LibC, Directory, Cache, Compat string }
	RemovedHooks []string `json:"removed_hooks"`
	Ignored      []string
	Audit        string
	Notes        []string
}

// GPU is a whole GPU.
type GPU struct {
	Index, Minor int
	UUID, PCI    string
}

// Device is a device node.
type Device struct {
	Path         string
	Major, Minor uint32
}

// Read reads the record in a bundle.
func Read(bundle string) (r Record, err error) {
	data, err := os.ReadFile(filepath.Join(bundle, Name))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}
