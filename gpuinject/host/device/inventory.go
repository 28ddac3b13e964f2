package device

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxProcFile bounds every file of procfs that is read, in bytes. The largest
// seen are about 1 KiB.
const MaxProcFile = 64 << 10

var errTooLarge = errors.New("file too large")

// ErrNoDriver says that no NVIDIA kernel module is loaded: its version file in
// procfs is missing.
var ErrNoDriver = errors.New("no NVIDIA driver is loaded on this host")

// Roots says where this host's file systems are: [host] of the configuration.
type Roots struct {
	// Proc is a procfs: <Proc>/driver/nvidia, <Proc>/devices.
	Proc string
	// Dev is the directory *above* dev: the nodes are <Dev>/dev/nvidia0.
	Dev string
	// Sys is a sysfs: <Sys>/bus/pci/devices.
	Sys string
	// Driver is the driver root, where a Platform is recognised by its files; "" is /.
	Driver string
}

// GPU is one physical GPU.
type GPU struct {
	// Index counts the GPUs that are not excluded in the order of their PCI bus
	// ids. It is -1 for an excluded GPU.
	Index int
	// Minor is N of /dev/nvidiaN. It follows the order in which the kernel found
	// the GPUs, which need not be Index. It is -1 for an excluded GPU without one.
	Minor int
	// UUID is "GPU-" and 36 characters, or empty while the driver does not know it
	// (it prints question marks until the GPU was initialised once).
	UUID string
	// BusID is the PCI address as procfs has it: "0000:65:00.0".
	BusID string
	// Model is the marketing name: "NVIDIA H200".
	Model string
}

// Inventory is what the loaded kernel module reports.
type Inventory struct {
	// DriverVersion is the version of the *loaded* kernel module: "580.159.04". It is
	// empty where a Platform has none of NVIDIA's.
	DriverVersion string
	// GPUs are those that can be used, in index order.
	GPUs []GPU
	// Excluded are those that the administrator took from use (NVreg_ExcludedGpus),
	// in bus id order.
	Excluded []GPU
	// Platform is set where the GPUs are not those of procfs alone.
	Platform Platform
	// Roots is where all this was found; Nodes looks there.
	Roots Roots

	// nested is set by OnlyPresent.
	nested bool
	// layouts are the MIG devices by minor number of their GPU, once looked at.
	layouts map[int]layout
}

// Discover reads the driver's procfs. It is cheap (two files and one more for each
// GPU), so callers run it for every container instead of caching. Without a loaded
// driver the error is ErrNoDriver, unless the host is of another Platform.
func Discover(roots Roots) (*Inventory, error) {
	if roots.Driver == "" {
		roots.Driver = "/"
	}
	inv, err := discover(roots)
	if errors.Is(err, ErrNoDriver) || err == nil && inv.maybeTegra() {
		if found := discoverPlatform(roots, inv); found != nil {
			return found, nil
		}
	}
	return inv, err
}

func discover(roots Roots) (*Inventory, error) {
	dir := filepath.Join(roots.Proc, "driver/nvidia")
	version, err := readVersion(filepath.Join(dir, "version"))
	if err != nil {
		return nil, err
	}
	inv := &Inventory{DriverVersion: version, Roots: roots}
	names, err := readNames(filepath.Join(dir, "gpus"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list GPUs: %w", err)
	}
	for _, name := range names {
		if _, ok := parseBusID(name); !ok {
			continue
		}
		info, err := roots.information(name)
		if err != nil {
			return nil, err
		}
		gpu := GPU{Index: -1, Minor: info.minor, UUID: info.uuid, BusID: name, Model: info.model}
		if info.excluded {
			inv.Excluded = append(inv.Excluded, gpu)
			continue
		}
		if gpu.Minor < 0 {
			return nil, fmt.Errorf("read GPU information: %s: no device minor", roots.informationFile(name))
		}
		inv.GPUs = append(inv.GPUs, gpu)
	}
	slices.SortFunc(inv.GPUs, compareBusID)
	slices.SortFunc(inv.Excluded, compareBusID)
	for i := range inv.GPUs {
		inv.GPUs[i].Index = i
	}
	return inv, nil
}

func (r Roots) informationFile(bus string) string {
	return filepath.Join(r.Proc, "driver/nvidia/gpus", bus, "information")
}

// information reads what the driver says of a GPU, which takes it a tenth of a
// millisecond.
func (r Roots) information(bus string) (information, error) {
	info, _, err := r.readInformation(bus)
	return info, err
}

// readInformation is information, with the bytes of the file.
func (r Roots) readInformation(bus string) (information, []byte, error) {
	file := r.informationFile(bus)
	data, err := readBounded(file)
	if err != nil {
		return information{}, nil, fmt.Errorf("read GPU information: %w", err)
	}
	info, err := parseInformation(data)
	if err != nil {
		return info, nil, fmt.Errorf("read GPU information: %s: %w", file, err)
	}
	return info, data, nil
}

// Unchanged tells whether the same version of the driver shows the same GPUs as at
// Discover, divided as they were when that was looked at. It does not read what it says
// of each: see Confirm.
func (inv *Inventory) Unchanged() bool {
	if inv.Platform != "" {
		return false
	}
	dir := filepath.Join(inv.Roots.Proc, "driver/nvidia")
	if version, err := readVersion(filepath.Join(dir, "version")); err != nil || version != inv.DriverVersion {
		return false
	}
	names, err := readNames(filepath.Join(dir, "gpus"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	n := 0
	for _, name := range names {
		if _, ok := parseBusID(name); !ok {
			continue
		}
		same := func(g GPU) bool { return g.BusID == name }
		if !slices.ContainsFunc(inv.GPUs, same) && !slices.ContainsFunc(inv.Excluded, same) {
			return false
		}
		n++
	}
	return n == len(inv.GPUs)+len(inv.Excluded) && inv.sameInstances()
}

// sameInstances tells whether the GPUs have the GPU instances that they had when MIG
// devices were looked for. A GPU whose instances had no compute instance is not the same:
// it counted as whole.
func (inv *Inventory) sameInstances() bool {
	for minor, l := range inv.layouts {
		gis, err := numbered(inv.migDir(minor), "gi")
		if err != nil || !slices.Equal(gis, l.gis) || len(gis) > 0 && len(l.here)+len(l.elsewhere) == 0 {
			return false
		}
	}
	return true
}

// Confirm makes sure that the driver says of these GPUs what it said at Discover, and of
// these capabilities what it said when they were listed. A UUID that was not known then
// may be known now. read are the files that it has read, by path.
func (inv *Inventory) Confirm(gpus []GPU, caps []Capability) (read map[string][]byte, err error) {
	read = map[string][]byte{}
	for _, g := range gpus {
		if g.BusID == "" { // a Tegra's
			continue
		}
		info, data, err := inv.Roots.readInformation(g.BusID)
		if err != nil {
			return nil, err
		}
		if info.minor != g.Minor || info.excluded || g.UUID != "" && info.uuid != g.UUID {
			return nil, fmt.Errorf("GPU %d (%s, %s) has changed while the container was created: it is not the one that was granted any more", g.Index, g.UUID, g.BusID)
		}
		read[inv.Roots.informationFile(g.BusID)] = data
	}
	for _, c := range caps {
		file := inv.CapabilityFile(c)
		minor, data, err := readCapability(file)
		if err != nil {
			return nil, err
		}
		if minor != c.Minor {
			return nil, fmt.Errorf("MIG capability %s has changed while the container was created: it is not the one that was granted any more", c.File)
		}
		read[file] = data
	}
	return read, nil
}

func readVersion(file string) (string, error) {
	data, err := readBounded(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %s is missing; load the nvidia kernel module (nvidia-smi must work on the host)", ErrNoDriver, file)
	}
	if err != nil {
		return "", fmt.Errorf("read driver version: %w", err)
	}
	version, ok := parseVersion(data)
	if !ok {
		return "", fmt.Errorf("read driver version: %s has no line \"NVRM version:\" with a version", file)
	}
	return version, nil
}

// parseVersion finds the version in <proc>/driver/nvidia/version. The open kernel
// module prints "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64
// 580.159.04  Release Build  (…)", the proprietary one "NVRM version: NVIDIA UNIX
// x86_64 Kernel Module  535.104.05  Sat Aug 19 …". The first word of digits and
// dots is it in both.
func parseVersion(data []byte) (string, bool) {
	for line := range strings.Lines(string(data)) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "NVRM version:")
		if !ok {
			continue
		}
		for word := range strings.FieldsSeq(rest) {
			if isVersion(word) {
				return word, true
			}
		}
	}
	return "", false
}

// isVersion accepts two or three groups of digits: "570.86" and "580.159.04".
func isVersion(s string) bool {
	groups := strings.Split(s, ".")
	if len(groups) < 2 || len(groups) > 3 {
		return false
	}
	for _, g := range groups {
		if !isDigits(g) || len(g) > 6 {
			return false
		}
	}
	return true
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// information is what is used of <proc>/driver/nvidia/gpus/<bus id>/information.
type information struct {
	model, uuid string
	minor       int // -1 when absent
	excluded    bool
}

// parseInformation reads lines of "Key: value" with any blanks around the value.
// Drivers before 455 say "Blacklisted" for "GPU Excluded".
func parseInformation(data []byte) (information, error) {
	info := information{minor: -1}
	for line := range strings.Lines(string(data)) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "Model":
			info.model = value
		case "GPU UUID":
			// "GPU-????????-????-…" until the GPU was initialised.
			if isUUID(value) {
				info.uuid = value
			}
		case "Device Minor":
			n, err := strconv.ParseUint(value, 10, 20) // the kernel's minors have 20 bits
			if err != nil {
				return info, fmt.Errorf("device minor %q is not a number", cut(value))
			}
			info.minor = int(n)
		case "GPU Excluded", "GPU Blacklisted", "Blacklisted":
			info.excluded = strings.EqualFold(value, "yes")
		}
	}
	return info, nil
}

// isUUID accepts "GPU-" and 8-4-4-4-12 hexadecimal digits.
func isUUID(s string) bool {
	rest, ok := strings.CutPrefix(s, "GPU-")
	if !ok || len(rest) != 36 {
		return false
	}
	for i, c := range []byte(rest) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (c == '-') || !dash && !isHex(c) {
			return false
		}
	}
	return true
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// busID is a PCI address in a form that can be compared.
type busID struct{ domain, bus, device, function uint64 }

// parseBusID accepts "0000:65:00.0" with a domain of four to eight digits, in any
// case: procfs prints four, NVML eight.
func parseBusID(s string) (busID, bool) {
	head, function, ok1 := strings.Cut(s, ".")
	parts := strings.Split(head, ":")
	if !ok1 || len(parts) != 3 || len(parts[0]) < 4 || len(parts[0]) > 8 ||
		len(parts[1]) != 2 || len(parts[2]) != 2 || len(function) != 1 {
		return busID{}, false
	}
	var n [4]uint64
	for i, p := range append(parts, function) {
		v, err := strconv.ParseUint(p, 16, 32)
		if err != nil {
			return busID{}, false
		}
		n[i] = v
	}
	return busID{n[0], n[1], n[2], n[3]}, true
}

func compareBusID(a, b GPU) int {
	x, _ := parseBusID(a.BusID)
	y, _ := parseBusID(b.BusID)
	return cmp.Or(cmp.Compare(x.domain, y.domain), cmp.Compare(x.bus, y.bus),
		cmp.Compare(x.device, y.device), cmp.Compare(x.function, y.function))
}

// readNames lists a directory without asking for each entry's type. System calls alone,
// as in readBounded.
func readNames(dir string) (names []string, err error) {
	fd, err := retry(func() (int, error) { return unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	for {
		n, err := retry(func() (int, error) { return unix.ReadDirent(fd, buf) })
		if err != nil {
			return nil, &fs.PathError{Op: "readdirent", Path: dir, Err: err}
		}
		if n == 0 {
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// ReadFile reads a whole file of the driver's procfs, of at most MaxProcFile bytes.
func ReadFile(name string) ([]byte, error) { return readBounded(name) }

// readBounded reads a whole file of at most MaxProcFile bytes. System calls alone:
// package os would ask what kind of file it is.
func readBounded(file string) ([]byte, error) {
	fd, err := retry(func() (int, error) { return unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, 1024)
	for {
		n, err := retry(func() (int, error) { return unix.Read(fd, buf[len(buf):cap(buf)]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: file, Err: err}
		}
		if n == 0 {
			return buf, nil
		}
		if buf = buf[:len(buf)+n]; len(buf) > MaxProcFile {
			return nil, &fs.PathError{Op: "read", Path: file, Err: errTooLarge}
		}
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, len(buf))
		}
	}
}

func retry(call func() (int, error)) (n int, err error) {
	for n, err = call(); errors.Is(err, unix.EINTR); n, err = call() {
	}
	return n, err
}

// cut bounds a foreign value in a message.
func cut(s string) string {
	if len(s) > 256 {
		return s[:256]
	}
	return s
}
