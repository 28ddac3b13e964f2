package device

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// ErrNoDriver is returned if no NVIDIA kernel module is loaded.
var ErrNoDriver = errors.New("no NVIDIA driver is loaded on this host")

// GPU is a physical GPU.
type GPU struct {
	// Index counts the GPUs that are not excluded in the order of their PCI bus ids. It is -1 for
	// an excluded GPU.
	Index int
	// Minor is N of /dev/nvidiaN, or -1 for a GPU without such a node.
	Minor int
	// UUID is "GPU-" and 36 characters, or empty while the driver does not know it (it prints
	// question marks until the GPU was initialised once).
	UUID string
	// BusID is the PCI address as procfs has it, "0000:65:00.0", or empty for a GPU that is not on
	// a PCI bus.
	BusID string
	Model string // "NVIDIA H200"
	Alias string // another id of the GPU; most have none. "all": every full id names it, see Select
}

// Inventory lists the GPUs and MIG devices of a host at one point in time.
type Inventory struct {
	// DriverVersion is the version of the loaded kernel module: "580.159.04". It is empty on a host
	// that has GPUs without NVIDIA's kernel module.
	DriverVersion string
	GPUs          []GPU // usable ones, in index order
	// Excluded are the GPUs that the administrator took from use (NVreg_ExcludedGpus).
	Excluded []GPU
	// Faulty are the GPUs that the driver lists but whose procfs files cannot be used. They keep
	// their index and are in no other list, and nothing selects them.
	Faulty []Fault
	// MIG are the MIG devices that this host can use, by GPU, GPU instance and compute instance.
	MIG []Instance
	// FaultyMIG are the MIG devices whose capabilities cannot be read. They are not in MIG.
	FaultyMIG []MIGFault
	// WithheldMIG are the MIG devices of the machine that were not given to this host, which is a
	// container.
	WithheldMIG []Instance
	// Config says where the inventory was read.
	Config config.Host

	found *Inventory // before Withhold
}

// Fault is a GPU that cannot be used. Of the GPU only the index and the PCI address are certain.
type Fault struct {
	GPU    GPU
	Reason string // one line, with the file
}

// MIGFault is a MIG device that cannot be used. Its rights are not certain.
type MIGFault struct {
	Instance Instance
	Reason   string // one line, with the file
}

// Discover reads the driver's procfs: one file for each GPU and two for each MIG device. A GPU or
// MIG device whose files cannot be used is in Faulty or FaultyMIG and does not hide the others.
// Without a loaded driver the error is ErrNoDriver.
func Discover(cfg config.Host) (Inventory, error) {
	inv := Inventory{Config: cfg}
	dir := filepath.Join(cfg.ProcRoot, "driver/nvidia")
	version, err := readVersion(filepath.Join(dir, "version"))
	if err != nil {
		return inv, err
	}
	inv.DriverVersion = version
	entries, err := os.ReadDir(filepath.Join(dir, "gpus"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return inv, fmt.Errorf("list GPUs: %w", err)
	}
	var found []Fault // those without a reason are usable
	for _, e := range entries {
		if BusID(e.Name()) == "" {
			continue
		}
		gpu, excluded, err := readInformation(filepath.Join(dir, "gpus", e.Name(), "information"))
		gpu.BusID = BusID(e.Name())
		switch {
		case err != nil:
			found = append(found, Fault{gpu, err.Error()})
		case excluded:
			inv.Excluded = append(inv.Excluded, gpu)
		default:
			found = append(found, Fault{GPU: gpu})
		}
	}
	slices.SortFunc(inv.Excluded, compareBusID)
	slices.SortFunc(found, func(a, b Fault) int { return compareBusID(a.GPU, b.GPU) })
	for i, f := range found {
		f.GPU.Index = i
		inv.add(f)
	}
	return inv, nil
}

// add adds a GPU and its MIG devices to the inventory. It is faulty if it has a reason, or if its
// MIG devices cannot be listed.
func (inv *Inventory) add(f Fault) {
	if f.Reason == "" {
		mig, err := readMIG(inv.Config, f.GPU)
		if err == nil {
			inv.GPUs = append(inv.GPUs, f.GPU)
			inv.MIG = append(inv.MIG, mig.usable...)
			inv.FaultyMIG = append(inv.FaultyMIG, mig.faulty...)
			return
		}
		f.Reason = err.Error()
	}
	inv.Faulty = append(inv.Faulty, f)
}

// Withhold makes a GPU faulty for the given reason, or its MIG devices if it has some: nothing
// selects them.
func (inv *Inventory) Withhold(gpu GPU, reason string) {
	if inv.found == nil {
		found := *inv
		inv.found = &found
	}
	if inv.IsWhole(gpu) {
		inv.Faulty = append(slices.Clone(inv.Faulty), Fault{gpu, reason})
		inv.GPUs = slices.DeleteFunc(slices.Clone(inv.GPUs), func(g GPU) bool { return g == gpu })
		return
	}
	for _, in := range inv.InstancesOf(gpu) {
		inv.FaultyMIG = append(slices.Clone(inv.FaultyMIG), MIGFault{in, reason})
	}
	inv.MIG = slices.DeleteFunc(slices.Clone(inv.MIG), func(in Instance) bool { return in.Minor == gpu.Minor })
}

// Found returns the inventory as Discover found it, with the GPUs that are withheld.
func (inv Inventory) Found() Inventory {
	if inv.found == nil {
		return inv
	}
	return *inv.found
}

func readInformation(file string) (gpu GPU, excluded bool, err error) {
	data, err := ReadFile(file)
	if err != nil {
		return GPU{Minor: -1}, false, fmt.Errorf("read GPU information: %w", err)
	}
	if gpu, excluded, err = parseInformation(data); err != nil {
		err = fmt.Errorf("read GPU information: %s: %w", file, err)
	}
	return gpu, excluded, err
}

func readVersion(file string) (string, error) {
	data, err := ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %s is missing; load the nvidia kernel module (nvidia-smi must work on the host)", ErrNoDriver, file)
	}
	if err != nil {
		return "", fmt.Errorf("read driver version: %w", err)
	}
	version := parseVersion(data)
	if version == "" {
		return "", fmt.Errorf("read driver version: %s has no line \"NVRM version:\" with a version", file)
	}
	return version, nil
}

// parseVersion finds the version in <proc>/driver/nvidia/version. The open kernel module prints
// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 580.159.04  Release Build  (…)", the
// proprietary one "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 …". In
// both, the version is the first word of two or three groups of digits. It returns "" if there is
// none.
func parseVersion(data []byte) string {
	for word := range strings.FieldsSeq(parseFields(data)["NVRM version"]) {
		groups := strings.Split(word, ".")
		if (len(groups) == 2 || len(groups) == 3) && !slices.ContainsFunc(groups, isNotNumber) {
			return word
		}
	}
	return ""
}

func isNotNumber(s string) bool { return s == "" || strings.Trim(s, "0123456789") != "" }

// parseInformation reads <proc>/driver/nvidia/gpus/<bus id>/information. Drivers before 455 say
// "Blacklisted" for "GPU Excluded". Only an excluded GPU may have no minor.
func parseInformation(data []byte) (gpu GPU, excluded bool, err error) {
	fields := parseFields(data)
	gpu = GPU{Index: -1, Minor: -1, Model: fields["Model"]}
	// "GPU-????????-????-…" until the GPU was initialised.
	if uuid := fields["GPU UUID"]; isUUID(uuid) {
		gpu.UUID = uuid
	}
	said := cmp.Or(fields["GPU Excluded"], fields["GPU Blacklisted"], fields["Blacklisted"])
	excluded = strings.EqualFold(said, "yes")
	minor, ok := fields["Device Minor"]
	if !ok && excluded {
		return gpu, excluded, nil
	}
	n, err := strconv.ParseUint(minor, 10, 20) // the kernel's minors have 20 bits
	if err != nil {
		return gpu, excluded, fmt.Errorf("device minor %.256q is not a number", minor)
	}
	gpu.Minor = int(n)
	return gpu, excluded, nil
}

func isUUID(s string) bool {
	rest, ok := strings.CutPrefix(s, "GPU-")
	return ok && len(rest) == 36 && strings.Trim(rest, "0123456789abcdefABCDEF-") == ""
}

// BusID returns a PCI address in the form of procfs, "0000:65:00.0", or "" if s is none. A domain of
// more than 16 bits has the digits that it needs. NVML prints a domain of eight digits, and
// libnvidia-container accepts fewer, in upper or lower case.
func BusID(s string) string {
	domain, rest, _ := strings.Cut(strings.ToLower(s), ":")
	ok, _ := path.Match("[0-9a-f][0-9a-f]:[0-9a-f][0-9a-f].[0-9a-f]", rest)
	if !ok || domain == "" || len(domain) > 8 || strings.Trim(domain, "0123456789abcdef") != "" {
		return ""
	}
	return fmt.Sprintf("%04s:%s", strings.TrimLeft(domain, "0"), rest)
}

func sameBusID(a, b string) bool { return BusID(a) != "" && BusID(a) == BusID(b) }

// compareBusID has the order of NVML's indices.
func compareBusID(a, b GPU) int {
	return cmp.Or(cmp.Compare(len(a.BusID), len(b.BusID)), strings.Compare(a.BusID, b.BusID))
}
