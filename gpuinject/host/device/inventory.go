package device

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

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
			found = insert(found, Fault{gpu, err.Error()}, compareFault)
		case excluded:
			inv.Excluded = insert(inv.Excluded, gpu, compareBusID)
		default:
			found = insert(found, Fault{GPU: gpu}, compareFault)
		}
	}
	gpusOf := map[int]int{} // how many have the minor
	for _, f := range found {
		gpusOf[f.GPU.Minor]++
	}
	for i, f := range found {
		f.GPU.Index = i
		if f.Reason == "" && gpusOf[f.GPU.Minor] > 1 { // guard: devices: one GPU for a node
			f.Reason = fmt.Sprintf("read GPU information: %s: another GPU has the device minor %d as well", filepath.Join(dir, "gpus", f.GPU.BusID, "information"), f.GPU.Minor)
		}
		inv.add(f)
	}
	inv.withholdSharedRights()
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
		inv.WithholdMIG(in, reason)
	}
}

// WithholdMIG makes a MIG device faulty for the given reason.
func (inv *Inventory) WithholdMIG(in Instance, reason string) {
	if inv.found == nil {
		found := *inv
		inv.found = &found
	}
	inv.FaultyMIG = append(slices.Clone(inv.FaultyMIG), MIGFault{in, reason})
	inv.MIG = slices.DeleteFunc(slices.Clone(inv.MIG), in.is)
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
	if n == minorModeset || n == minorControl {
		return gpu, excluded, fmt.Errorf("device minor %d is no GPU's", n)
	}
	gpu.Minor = int(n)
	return gpu, excluded, nil
}
