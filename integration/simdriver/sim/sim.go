package sim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/mounts"
)

// DefaultVersion is the driver version where Options says none.
const DefaultVersion = "580.159.04"

// NewestVersion is the newest driver version that is simulated. It has memory limits.
const NewestVersion = "615.71.09"

// MaxGPUs bounds Options.GPUs.
const MaxGPUs = 16

// recordName marks a directory as a simulated driver and lets Open find it again.
const recordName = "simdriver.json"

// Options say what driver to simulate. Dir and GPUs are needed.
type Options struct {
	// Dir is where everything goes; it is created, and must be empty if it exists.
	Dir string
	// GPUs is how many the host has, 1 to MaxGPUs.
	GPUs int
	// Layout is where the driver's files are; Debian by default.
	Layout Layout
	// Version is that of the user space files, DefaultVersion by default.
	Version string
	// KernelVersion is that of the loaded module, Version by default. They differ
	// between a driver upgrade and the reboot.
	KernelVersion string
	// Excluded are the indices of GPUs that NVreg_ExcludedGpus names: they have a
	// node and an information file, but no driver uses them.
	Excluded []int
	// MIG are the MIG devices; their GPUs have MIG mode enabled.
	MIG []MIGDevice
	// Others are devices of other kinds that the host has.
	Others
	// CUDA is the version that the driver supports, as "12.4"; that of the driver's
	// branch by default.
	CUDA string
	// Models are the models of the GPUs, by index; the default is an H200.
	Models map[int]Model
}

// Others are kinds of devices besides GPUs; the zero value is a host without them.
type Others struct {
	// IMEX is how many IMEX channels have a node, 0 to 2048.
	IMEX int
	// GDS: two nvidia-fs nodes, nvidia-fs in procfs, the udev database and
	// cuFile's configuration. MOFED: two adapters and the connection manager.
	// GDRCopy: one node. NVSwitch: two switches and their control node.
	GDS, MOFED, GDRCopy, NVSwitch bool
}

// MIGDevice is one compute instance of a GPU instance.
type MIGDevice struct {
	GPU int // index of the GPU
	GI  int // GPU instance id, 0 to 14
	CI  int // compute instance id, 0 to 7
}

// GPU is one simulated GPU. GPUs are in the order of their PCI bus ids, which is
// the order of the indices that NVML and CUDA use.
type GPU struct {
	Index    int
	Minor    int    // of /dev/nvidia<Minor>
	UUID     string // GPU-xxxxxxxx-xxxx-…
	BusID    string // 0000:19:00.0, as procfs names it
	Excluded bool
	Model
}

// Model is a kind of GPU. An empty field is the H200's.
type Model struct {
	Name  string // "NVIDIA H200"
	Brand string // "nvidia", "tesla", … as in requirements
	Arch  string // compute capability: "9.0"
}

// MIG is one simulated MIG device.
type MIG struct {
	MIGDevice
	UUID string // MIG-xxxxxxxx-xxxx-…
	// GIMinor and CIMinor are those of the nodes /dev/nvidia-caps/nvidia-cap<N>.
	GIMinor, CIMinor int
}

// Driver is a simulated driver on disk.
type Driver struct {
	Dir        string
	Root       string // host.driver-root
	DevRoot    string // host.dev-root
	ProcRoot   string // host.proc-root
	SysRoot    string // host.sys-root
	StateDir   string // host.state-dir; made by the shim
	ConfigPath string // to be named by NVIDIA_SHIM_CONFIG
	Layout     Layout
	// Version is that of the installed libraries, KernelVersion that of the module.
	Version, KernelVersion string
	CUDA                   string // "" for that of the version's branch
	Majors                 Majors
	GPUs                   []GPU
	MIG                    []MIG
	Others                 Others
	// Installed are the driver's files and links below Root, for Upgrade.
	Installed []string
}

var versionForm = regexp.MustCompile(`^[0-9]{3,4}(\.[0-9]{1,4}){1,2}$`)

// Create makes a simulated driver. If it fails, it removes what it has made.
func Create(ctx context.Context, o Options) (_ *Driver, err error) {
	d, err := plan(o)
	if err != nil {
		return nil, fmt.Errorf("simulated driver: %w", err)
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("simulated driver: device nodes need mknod: run this as root")
	}
	if d.Majors, err = chooseMajors(); err != nil {
		return nil, fmt.Errorf("simulated driver: %w", err)
	}
	if entries, err := os.ReadDir(d.Dir); err == nil && len(entries) > 0 {
		return nil, fmt.Errorf("simulated driver: directory %s is not empty", d.Dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("simulated driver: %w", err)
	}
	defer func() {
		if err != nil {
			_ = d.closeLimits()
			os.RemoveAll(d.Dir)
			err = fmt.Errorf("simulated driver: %w", err)
		}
	}()
	for _, step := range []func() error{
		func() error { return d.install(ctx) },
		d.makeNodes,
		d.makeLimits,
		d.writeOthers,
		d.writeProc,
		d.writeSys,
		func() error { return writeFile(d.ConfigPath, d.config(), 0o644) },
		d.save,
		d.openDirectories,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Open returns the simulated driver that Create made in dir.
func Open(dir string) (*Driver, error) {
	dir, err := resolve(dir)
	if err != nil {
		return nil, fmt.Errorf("simulated driver: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(dir, recordName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("simulated driver: %s holds none", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("simulated driver: %w", err)
	}
	d := &Driver{}
	if err := json.Unmarshal(data, d); err != nil {
		return nil, fmt.Errorf("simulated driver: %s: %w", recordName, err)
	}
	if d.Dir != dir {
		return nil, fmt.Errorf("simulated driver: %s was made for %s", dir, d.Dir)
	}
	return d, nil
}

// Upgrade does to the driver root what a package upgrade does, and then loads
// the new module: libraries of the other version appear, links and ld.so.cache
// change, the old files go. Containers that hold the old ones keep them.
func (d *Driver) Upgrade(version string) error {
	if !versionForm.MatchString(version) {
		return fmt.Errorf("simulated driver: %q is not a driver version", version)
	}
	old := d.Installed
	d.Version = version
	if err := d.install(context.Background()); err != nil {
		return fmt.Errorf("simulated driver: upgrade to %s: %w", version, err)
	}
	for _, name := range old {
		if !slices.Contains(d.Installed, name) {
			if err := os.Remove(filepath.Join(d.Root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("simulated driver: upgrade to %s: %w", version, err)
			}
		}
	}
	if err := d.updateCache(context.Background()); err != nil {
		return fmt.Errorf("simulated driver: upgrade to %s: %w", version, err)
	}
	return d.LoadModule(version)
}

// LoadModule replaces the loaded kernel module, as a reboot after an upgrade
// does: the files in proc and sys that name its version change.
func (d *Driver) LoadModule(version string) error {
	if !versionForm.MatchString(version) {
		return fmt.Errorf("simulated driver: %q is not a driver version", version)
	}
	d.KernelVersion = version
	for _, step := range []func() error{d.makeLimits, d.writeProc, d.writeSys, d.save, d.openDirectories} {
		if err := step(); err != nil {
			return fmt.Errorf("simulated driver: module %s: %w", version, err)
		}
	}
	return nil
}

// Remove unmounts what is mounted below the directory, the shim's views for
// example, and deletes the directory.
func (d *Driver) Remove() error {
	if err := d.closeLimits(); err != nil {
		return fmt.Errorf("simulated driver: %w", err)
	}
	if err := mounts.RemoveAll(d.Dir); err != nil {
		return fmt.Errorf("simulated driver: %w", err)
	}
	return nil
}

// resolve makes a directory's name absolute and free of links, so that the mount
// table names what is below it in the same way.
func resolve(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(dir)); err == nil {
		dir = filepath.Join(parent, filepath.Base(dir))
	}
	return dir, nil
}

// plan checks the options and names everything.
func plan(o Options) (*Driver, error) {
	if o.Dir == "" {
		return nil, errors.New("no directory given")
	}
	dir, err := resolve(o.Dir)
	if err != nil {
		return nil, err
	}
	if o.GPUs < 1 || o.GPUs > MaxGPUs {
		return nil, fmt.Errorf("%d GPUs: 1 to %d can be simulated", o.GPUs, MaxGPUs)
	}
	o.Layout, o.Version = cmp.Or(o.Layout, Debian), cmp.Or(o.Version, DefaultVersion)
	o.KernelVersion = cmp.Or(o.KernelVersion, o.Version)
	if !slices.Contains(Layouts, o.Layout) {
		return nil, fmt.Errorf("unknown layout %q (known: %q)", o.Layout, Layouts)
	}
	for _, v := range []string{o.Version, o.KernelVersion} {
		if !versionForm.MatchString(v) {
			return nil, fmt.Errorf("%q is not a driver version", v)
		}
	}
	d := &Driver{
		Dir: dir, Layout: o.Layout, Version: o.Version, KernelVersion: o.KernelVersion,
		Root: filepath.Join(dir, "root"), DevRoot: filepath.Join(dir, "devroot"),
		ProcRoot: filepath.Join(dir, "proc"), SysRoot: filepath.Join(dir, "sys"),
		StateDir: filepath.Join(dir, "state"), ConfigPath: filepath.Join(dir, "config.toml"),
		GPUs: planGPUs(o.GPUs), Others: o.Others, CUDA: o.CUDA,
	}
	if o.CUDA != "" && !shortVersion.MatchString(o.CUDA) {
		return nil, fmt.Errorf("%q is not a CUDA version", o.CUDA)
	}
	if err := d.setModels(o.Models); err != nil {
		return nil, err
	}
	if o.IMEX < 0 || o.IMEX > maxIMEX {
		return nil, fmt.Errorf("%d IMEX channels: up to %d can be simulated", o.IMEX, maxIMEX)
	}
	for _, i := range o.Excluded {
		if i < 0 || i >= o.GPUs {
			return nil, fmt.Errorf("excluded GPU %d: there are %d", i, o.GPUs)
		}
		d.GPUs[i].Excluded = true
	}
	d.MIG, err = d.planMIG(o.MIG)
	return d, err
}

// config is the shim's configuration for this driver.
func (d *Driver) config() string {
	return fmt.Sprintf(`# A simulated NVIDIA driver: point containerd's NVIDIA_SHIM_CONFIG at this file.
[host]
driver-root = %q
dev-root = %q
proc-root = %q
sys-root = %q
state-dir = %q
`, d.Root, d.DevRoot, d.ProcRoot, d.SysRoot, d.StateDir)
}

func (d *Driver) save() error {
	data, err := json.MarshalIndent(d, "", "\t")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(d.Dir, recordName), string(data)+"\n", 0o644)
}

// openDirectories gives every new directory its usual mode, whatever the umask is.
func (d *Driver) openDirectories() error {
	for _, dir := range []string{d.Root, d.DevRoot, d.ProcRoot, d.SysRoot} {
		err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return err
			}
			return os.Chmod(name, 0o755)
		})
		if err != nil {
			return err
		}
	}
	return os.Chmod(d.Dir, 0o755)
}

// writeFile writes a new file by a temporary name and a rename, so that readers
// see the old content or the new one; its mode does not depend on the umask.
func writeFile(name, content string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	tmp := name + ".new"
	if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
		return err
	}
	if err := os.Chmod(tmp, mode); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}
