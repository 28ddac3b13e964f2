package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ConfigName is the name of the OCI configuration in a bundle (runtime-spec,
// "Filesystem Bundle").
const ConfigName = "config.json"

// maxConfig bounds config.json, in bytes.
const maxConfig = 64 << 20

// Bundle is a container's bundle with its configuration as it was read.
type Bundle struct {
	Dir  string
	Spec Spec

	raw  []byte
	mode os.FileMode
}

// Spec is a read-only view of the parts of the OCI configuration that decide
// about GPUs. It is never written back.
type Spec struct {
	Root        *specs.Root       `json:"root"`
	Process     *Process          `json:"process"`
	Mounts      []specs.Mount     `json:"mounts"`
	Hooks       *specs.Hooks      `json:"hooks"`
	Annotations map[string]string `json:"annotations"`
	Linux       *Linux            `json:"linux"`
}

// Process is the part of process that is read.
type Process struct {
	Env          []string                 `json:"env"`
	Capabilities *specs.LinuxCapabilities `json:"capabilities"`
	User         specs.User               `json:"user"`
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
	Resources   *Resources             `json:"resources"`
}

// Resources is the part of linux.resources that is read.
type Resources struct {
	Devices []specs.LinuxDeviceCgroup `json:"devices"`
}

// Read returns the bytes of the configuration of the bundle dir.
//
// The file steers everything that follows, so it must be an ordinary file of
// root's that nobody else can write, and no link (T52).
func Read(dir string) ([]byte, os.FileMode, error) {
	name := filepath.Join(dir, ConfigName)
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, 0, &os.PathError{Op: "fstat", Path: name, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, 0, fmt.Errorf("%s is not a regular file", name)
	case st.Nlink > 1:
		return nil, 0, fmt.Errorf("%s has %d hard links", name, st.Nlink)
	case st.Uid != 0 && st.Uid != uint32(os.Geteuid()):
		return nil, 0, fmt.Errorf("%s is owned by uid %d", name, st.Uid)
	case st.Mode&0o022 != 0:
		return nil, 0, fmt.Errorf("%s can be written by others than root (mode %04o)", name, st.Mode&0o7777)
	case st.Size > maxConfig:
		return nil, 0, fmt.Errorf("%s is larger than %d bytes", name, maxConfig)
	}
	data := make([]byte, st.Size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", name, err)
	}
	return data, os.FileMode(st.Mode & 0o777), nil
}

// Load reads the configuration of the bundle dir.
func Load(dir string) (*Bundle, error) {
	raw, mode, err := Read(dir)
	if err != nil {
		return nil, err
	}
	return Parse(dir, raw, mode)
}

// Parse takes the bytes of a configuration that Read returned.
func Parse(dir string, raw []byte, mode os.FileMode) (*Bundle, error) {
	b := &Bundle{Dir: dir, raw: raw, mode: mode}
	text := raw
	if json.Valid(raw) {
		text = withoutSeccomp(raw)
	}
	if err := json.Unmarshal(text, &b.Spec); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, ConfigName), err)
	}
	return b, nil
}

// At is b where the same bytes were read in dir, from a file of this mode.
func (b *Bundle) At(dir string, mode os.FileMode) *Bundle {
	b.Dir, b.mode = dir, mode
	return b
}

// Raw returns the configuration as it stands, edits included.
func (b *Bundle) Raw() []byte { return b.raw }

// Edits are what is added to a configuration.
type Edits struct {
	Devices        []specs.LinuxDevice
	Rules          []specs.LinuxDeviceCgroup
	Mounts         []specs.Mount
	AdditionalGids []uint32
	// Env are variables to set, as NAME=value.
	Env []string
	// Hooks are added behind those of their stage.
	Hooks *specs.Hooks
	// RemoveMount tells which mounts of the configuration to take out; nil keeps all.
	RemoveMount func(specs.Mount) bool
	// RemoveRule tells which device rules of the configuration to take out; nil keeps
	// all.
	RemoveRule func(specs.LinuxDeviceCgroup) bool
	// RemoveHook tells which OCI hooks to take out; nil keeps all.
	RemoveHook func(specs.Hook) bool
}

// Apply adds e to the configuration in memory. What is already there, the same
// device node, rule, mount or group, is not repeated, so applying twice changes
// nothing (T54). A node or mount that is there with another meaning is an error.
// It returns the paths of the hooks that were removed.
func (b *Bundle) Apply(e Edits) (removed []string, err error) {
	o, err := parseObject(b.raw)
	if err != nil {
		return nil, b.wrap(err)
	}
	devices, err := b.newDevices(e.Devices)
	if err != nil {
		return nil, err
	}
	rules, mounts, gids := b.newRules(e.Rules), b.newMounts(e.Mounts), b.newGids(e.AdditionalGids)
	steps := []struct {
		path []string
		skip bool
		fn   func(json.RawMessage) (json.RawMessage, error)
	}{
		{[]string{"linux", "devices"}, len(devices) == 0, appending(devices)},
		{[]string{"linux", "resources", "devices"}, len(e.Rules) == 0, appending(rules)},
		{[]string{"mounts"}, len(e.Mounts) == 0, appending(mounts)},
		{[]string{"process", "user", "additionalGids"}, len(e.AdditionalGids) == 0, appending(gids)},
	}
	for _, s := range steps {
		if s.skip {
			continue
		}
		if err := o.edit(s.path, s.fn); err != nil {
			return nil, b.wrap(err)
		}
	}
	dropMounts := e.RemoveMount != nil && slices.ContainsFunc(b.Spec.Mounts, e.RemoveMount)
	if dropMounts {
		if err := o.edit([]string{"mounts"}, removing(e.RemoveMount, func(specs.Mount) {})); err != nil {
			return nil, b.wrap(err)
		}
	}
	dropRules := e.RemoveRule != nil && b.Spec.Linux != nil && b.Spec.Linux.Resources != nil &&
		slices.ContainsFunc(b.Spec.Linux.Resources.Devices, e.RemoveRule)
	if dropRules {
		if err := o.edit([]string{"linux", "resources", "devices"}, removing(e.RemoveRule, func(specs.LinuxDeviceCgroup) {})); err != nil {
			return nil, b.wrap(err)
		}
	}
	if err := b.setEnv(o, e.Env); err != nil {
		return nil, b.wrap(err)
	}
	if err := b.addHooks(o, e.Hooks); err != nil {
		return nil, b.wrap(err)
	}
	if e.RemoveHook != nil && b.Spec.Hooks != nil {
		if removed, err = removeHooks(o, e.RemoveHook); err != nil {
			return nil, b.wrap(err)
		}
	}
	if o.changed {
		var edited bytes.Buffer
		edited.Grow(len(b.raw) + 8<<10)
		o.encode(&edited)
		b.raw = edited.Bytes()
		b.Spec.add(devices, rules, mounts, gids)
		if dropMounts {
			b.Spec.Mounts = slices.DeleteFunc(b.Spec.Mounts, e.RemoveMount)
		}
		if dropRules {
			b.Spec.Linux.Resources.Devices = slices.DeleteFunc(b.Spec.Linux.Resources.Devices, e.RemoveRule)
		}
		if len(removed) > 0 {
			b.Spec.removeHooks(e.RemoveHook)
		}
	}
	return removed, nil
}

// add brings the view to what Parse would make of the edited configuration.
func (s *Spec) add(devices []specs.LinuxDevice, rules []specs.LinuxDeviceCgroup, mounts []specs.Mount, gids []uint32) {
	if s.Linux == nil && len(devices)+len(rules) > 0 {
		s.Linux = &Linux{}
	}
	if len(devices) > 0 {
		s.Linux.Devices = append(s.Linux.Devices, devices...)
	}
	if len(rules) > 0 {
		if s.Linux.Resources == nil {
			s.Linux.Resources = &Resources{}
		}
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, rules...)
	}
	s.Mounts = append(s.Mounts, mounts...)
	if len(gids) > 0 {
		if s.Process == nil {
			s.Process = &Process{}
		}
		s.Process.User.AdditionalGids = append(s.Process.User.AdditionalGids, gids...)
	}
}

// removeHooks is removeHooks for the view.
func (s *Spec) removeHooks(drop func(specs.Hook) bool) {
	for _, stage := range stages(s.Hooks) {
		*stage = slices.DeleteFunc(*stage, drop)
	}
}

func (b *Bundle) wrap(err error) error {
	return fmt.Errorf("%s: %w", filepath.Join(b.Dir, ConfigName), err)
}

func appending[T any](elements []T) func(json.RawMessage) (json.RawMessage, error) {
	return func(raw json.RawMessage) (json.RawMessage, error) {
		if len(elements) == 0 {
			return nil, nil
		}
		return appendElements(raw, elements)
	}
}

// newDevices leaves out the nodes that a device plugin or CDI already put there.
// runc keeps a node that exists whatever its numbers are, so another device at
// the same path is refused rather than trusted.
func (b *Bundle) newDevices(devices []specs.LinuxDevice) ([]specs.LinuxDevice, error) {
	var out []specs.LinuxDevice
	for _, d := range devices {
		i := -1
		if b.Spec.Linux != nil {
			i = slices.IndexFunc(b.Spec.Linux.Devices, func(x specs.LinuxDevice) bool { return filepath.Clean(x.Path) == d.Path })
		}
		if i < 0 {
			out = append(out, d)
			continue
		}
		if x := b.Spec.Linux.Devices[i]; x.Type != d.Type || x.Major != d.Major || x.Minor != d.Minor {
			return nil, fmt.Errorf("device %s is already in the container's configuration as %s %d:%d, this host has %s %d:%d",
				d.Path, x.Type, x.Major, x.Minor, d.Type, d.Major, d.Minor)
		}
	}
	return out, nil
}

// newRules leaves out the rules that are the last word on their device already.
func (b *Bundle) newRules(rules []specs.LinuxDeviceCgroup) []specs.LinuxDeviceCgroup {
	var out []specs.LinuxDeviceCgroup
	for _, r := range rules {
		if !b.hasRule(r) {
			out = append(out, r)
		}
	}
	return out
}

func (b *Bundle) hasRule(r specs.LinuxDeviceCgroup) bool {
	if b.Spec.Linux == nil || b.Spec.Linux.Resources == nil {
		return false
	}
	// Later rules win: only an exact rule with no wider one behind it counts.
	existing := b.Spec.Linux.Resources.Devices
	for i := len(existing) - 1; i >= 0; i-- {
		x := existing[i]
		exact := x.Major != nil && x.Minor != nil
		if !exact || !x.Allow {
			return false
		}
		if x.Type == r.Type && *x.Major == *r.Major && *x.Minor == *r.Minor {
			return bytes.ContainsRune([]byte(x.Access), 'r') && bytes.ContainsRune([]byte(x.Access), 'w')
		}
	}
	return false
}

func (b *Bundle) newMounts(mounts []specs.Mount) []specs.Mount {
	var out []specs.Mount
	for _, m := range mounts {
		same := func(x specs.Mount) bool { return x.Destination == m.Destination && x.Source == m.Source }
		if !slices.ContainsFunc(b.Spec.Mounts, same) {
			out = append(out, m)
		}
	}
	return out
}

func (b *Bundle) newGids(gids []uint32) []uint32 {
	var out []uint32
	for _, g := range gids {
		if b.Spec.Process == nil || !slices.Contains(b.Spec.Process.User.AdditionalGids, g) {
			out = append(out, g)
		}
	}
	return out
}

// hookStages are the members of hooks (runtime-spec, "POSIX-platform Hooks").
var hookStages = []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

// removeHooks takes the hooks out that drop chooses; the others keep their bytes
// and order.
func removeHooks(o *object, drop func(specs.Hook) bool) (removed []string, err error) {
	for _, stage := range hookStages {
		err := o.edit([]string{"hooks", stage}, removing(drop, func(h specs.Hook) { removed = append(removed, h.Path) }))
		if err != nil {
			return nil, err
		}
	}
	return removed, nil
}

// removing takes the elements out of an array that drop chooses, and tells dropped of
// each.
func removing[T any](drop func(T) bool, dropped func(T)) func(json.RawMessage) (json.RawMessage, error) {
	return func(raw json.RawMessage) (json.RawMessage, error) {
		array, err := elements(raw)
		if err != nil {
			return nil, err
		}
		kept := array[:0]
		n := len(array)
		for _, element := range array {
			var value T
			if err := json.Unmarshal(element, &value); err != nil {
				return nil, err
			}
			if drop(value) {
				dropped(value)
				continue
			}
			kept = append(kept, element)
		}
		if len(kept) == n {
			return nil, nil
		}
		return encodeArray(kept), nil
	}
}

// Save writes the configuration by temporary file and rename, with the mode that
// it had.
func (b *Bundle) Save() error {
	return WriteFile(b.Dir, ConfigName, b.raw, b.mode)
}

// WriteFile makes the file name in the bundle dir by temporary file and rename.
func WriteFile(dir, name string, data []byte, mode os.FileMode) (err error) {
	f, err := os.CreateTemp(dir, "."+name+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", name, err)
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, name))
}

// WriteLinks makes the directory name in the bundle dir, with symbolic links: their
// names and what they hold. What an earlier run left there goes.
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
