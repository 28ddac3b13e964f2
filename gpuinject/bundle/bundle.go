package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// ConfigName is the name of the OCI configuration in a bundle (runtime-spec, "Filesystem Bundle").
const ConfigName = "config.json"

// The bounds of config.json. They leave room for the longest environment that the kernel passes to
// a program, 6 MiB with its pointers (execve(2)), and bound the memory of the decoded values.
const (
	maxConfig = 8 << 20 // bytes
	maxCommas = 128 << 10
	// maxElements bounds mounts, devices, device rules, hooks, namespaces and id mappings, each.
	maxElements = 4096
)

// Bundle is a container's bundle with its configuration.
type Bundle struct {
	Dir string
	// Spec holds the configuration, edits included.
	Spec Spec

	raw    []byte
	mode   os.FileMode
	edited bool
}

// Spec is the part of the OCI configuration that decides about GPUs. It is never written back.
type Spec struct {
	Root        specs.Root        `json:"root"`
	Process     Process           `json:"process"`
	Mounts      []specs.Mount     `json:"mounts"`
	Hooks       specs.Hooks       `json:"hooks"`
	Annotations map[string]string `json:"annotations"`
	Linux       Linux             `json:"linux"`
}

// Process is the part of process that is read.
type Process struct {
	Env          []string                `json:"env"`
	Capabilities specs.LinuxCapabilities `json:"capabilities"`
	User         specs.User              `json:"user"`
}

// Linux is the part of linux that is read.
type Linux struct {
	Devices     []specs.LinuxDevice    `json:"devices"`
	Namespaces  []specs.LinuxNamespace `json:"namespaces"`
	MaskedPaths []string               `json:"maskedPaths"`
	MountLabel  string                 `json:"mountLabel"`
	CgroupsPath string                 `json:"cgroupsPath"`
	UIDMappings []specs.LinuxIDMapping `json:"uidMappings"`
	GIDMappings []specs.LinuxIDMapping `json:"gidMappings"`
	Resources   struct {
		Devices []specs.LinuxDeviceCgroup `json:"devices"`
	} `json:"resources"`
}

// Read returns the bytes and the mode of the configuration in the bundle dir.
//
// The file steers everything that follows, so it must be a regular file, not a link, that only root
// can write, with one name, in a directory that only root can change (T52).
func Read(dir string) ([]byte, os.FileMode, error) {
	name := filepath.Join(dir, ConfigName)
	raw, st, err := trusted.Read(name, maxConfig) // guard: config.json: size
	if err != nil {
		return nil, 0, err
	}
	if st.Nlink > 1 { // guard: config.json: one name
		return nil, 0, fmt.Errorf("%s has %d hard links", name, st.Nlink)
	}
	var parent unix.Stat_t
	if err := unix.Stat(dir, &parent); err != nil {
		return nil, 0, err
	}
	if err := trusted.RootDirectory(&parent); err != nil { // guard: config.json: in root's directory
		return nil, 0, fmt.Errorf("%s %w", dir, err)
	}
	return raw, os.FileMode(st.Mode & 0o777), nil
}

// Parse makes a Bundle of what Read returned.
func Parse(dir string, raw []byte, mode os.FileMode) (*Bundle, error) {
	b := &Bundle{Dir: dir, raw: raw, mode: mode}
	if bytes.Count(raw, []byte{','}) > maxCommas { // guard: parsers: values of config.json
		return nil, b.wrap(fmt.Errorf("more than %d commas: shorten its variables, annotations and lists", maxCommas))
	}
	err := json.Unmarshal(raw, &b.Spec)
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		err = fmt.Errorf("key %q: unexpected JSON %s", kind.Field, kind.Value) // its own text has Go's types
	}
	if err != nil {
		return nil, b.wrap(err)
	}
	return b, nil
}

// CheckCounts returns an error if a list of the configuration is too long for a container with
// GPUs: its elements are resolved in the image and compared with each other.
func (s *Spec) CheckCounts() error {
	for _, list := range []struct {
		name string
		n    int
	}{
		{"mounts", len(s.Mounts)},
		{"devices", len(s.Linux.Devices)},
		{"device rules", len(s.Linux.Resources.Devices)},
		//nolint:staticcheck // Prestart is deprecated and still what docker --gpus uses.
		{"hooks", len(s.Hooks.Prestart) + len(s.Hooks.CreateRuntime) + len(s.Hooks.CreateContainer) + len(s.Hooks.StartContainer) + len(s.Hooks.Poststart) + len(s.Hooks.Poststop)},
		{"namespaces", len(s.Linux.Namespaces)},
		{"id mappings", len(s.Linux.UIDMappings) + len(s.Linux.GIDMappings)},
	} {
		if list.n > maxElements {
			return fmt.Errorf("the container has %d %s, a container with GPUs may have %d", list.n, list.name, maxElements)
		}
	}
	return nil
}

// Raw returns the configuration as JSON, edits included.
func (b *Bundle) Raw() []byte { return b.raw }

// RootPath returns the host path of the container's root file system.
func (b *Bundle) RootPath() string {
	root := b.Spec.Root.Path
	switch {
	case root == "":
		return filepath.Join(b.Dir, "rootfs")
	case filepath.IsAbs(root):
		return root
	}
	return filepath.Join(b.Dir, root)
}

// Save writes the configuration, if it was edited, with the mode that the file had.
func (b *Bundle) Save() error {
	if !b.edited {
		return nil
	}
	return WriteFile(b.Dir, ConfigName, b.raw, b.mode)
}

// WriteFile makes or replaces the file name in the bundle dir.
func WriteFile(dir, name string, data []byte, mode os.FileMode) error {
	if err := atomicfile.Write(filepath.Join(dir, name), data, mode); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// WriteLinks makes or replaces the directory name in the bundle dir. links maps the names of the
// symbolic links in it to their targets.
func WriteLinks(dir, name string, links map[string]string) error {
	dir = filepath.Join(dir, name)
	err := os.RemoveAll(dir)
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	if err == nil { // whatever the umask is
		err = os.Chmod(dir, 0o755)
	}
	for link, target := range links {
		if err == nil {
			err = os.Symlink(target, filepath.Join(dir, link))
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func (b *Bundle) wrap(err error) error {
	return fmt.Errorf("%s: %w", filepath.Join(b.Dir, ConfigName), err)
}
