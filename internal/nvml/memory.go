//go:build cgo

package nvml

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// maxRounding is how much a limit that is read back may differ: the driver may round to the pages
// of a GPU.
const maxRounding = 2 << 20

// SetMemory sets the limits q.SetMemory of the cgroup and returns what the driver then reports. It
// checks every limit before it sets the first. After an error every GPU has what it had before,
// unless the error says otherwise; but if all limits are none, it takes away each that it can.
func SetMemory(host config.Host, q probe.Questions) (use []probe.MemoryUse, err error) {
	err = withMemory(host, q, func(m memory) (err error) {
		if slices.ContainsFunc(q.SetMemory, func(l probe.MemoryLimit) bool { return !isNone(l) }) {
			use, err = m.setAll(q.SetMemory)
		} else {
			use, err = m.clear(q.SetMemory)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return use, nil
}

func isNone(l probe.MemoryLimit) bool { return l.Soft == 0 && l.Hard == probe.NoMemoryLimit }

// ReadMemory returns the limits of the cgroup for the GPUs q.ReadMemory, without those for which the
// driver counts nothing.
func ReadMemory(host config.Host, q probe.Questions) (use []probe.MemoryUse, err error) {
	use = []probe.MemoryUse{}
	err = withMemory(host, q, func(m memory) error {
		for _, uuid := range q.ReadMemory {
			l, err := m.find(uuid)
			if err != nil {
				return err
			}
			if l.counted {
				use = append(use, l.now)
			}
		}
		return nil
	})
	return use, err
}

// withMemory calls fn with NVML open, in a process that Confine has confined, if the driver has
// memory limits and the cgroup is the one at q.CgroupPath before and after.
func withMemory(host config.Host, q probe.Questions, fn func(memory) error) error {
	path, err := libraryPath(host, nvmlName)
	if err != nil {
		return err
	}
	if !IsConfined(q) { // guard: probe: confined when it limits memory
		return errors.New("this program is not confined: only nvidia-shimctl probe may start it")
	}
	if err := limitCalls(); err != nil {
		return err
	}
	if err := checkCgroup(q.CgroupPath); err != nil {
		return err
	}
	return opened(path, nil, func(l nvml.Interface) (hangs bool, err error) {
		for _, symbol := range []string{"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"} {
			if l.Extensions().LookupSymbol(symbol) != nil {
				version, _ := l.SystemGetDriverVersion()
				return false, fmt.Errorf("driver %s: %w, which need 615 or later", version, probe.ErrNoMemoryLimits)
			}
		}
		if err := fn(memory{l, q.CgroupPath}); err != nil {
			return false, err
		}
		return false, checkCgroup(q.CgroupPath)
	})
}

// memory sets and reads the limits of a cgroup.
type memory struct {
	library nvml.Interface
	cgroup  string // its directory
}

// setAll sets every limit or none.
func (m memory) setAll(limits []probe.MemoryLimit) (use []probe.MemoryUse, err error) {
	var list []limited
	for _, want := range limits {
		l, err := m.find(want.UUID)
		if err == nil {
			err = l.check(want)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, l)
	}
	for i, want := range limits {
		now, err := list[i].set(want)
		if err != nil { // part of it may have happened
			return nil, errors.Join(err, restore(list[:i+1])) // guard: probe: a failure restores limits
		}
		use = append(use, now)
	}
	return use, nil
}

// clear takes away the limits. A GPU that fails, because it is lost, keeps no other from it.
func (m memory) clear(limits []probe.MemoryLimit) (use []probe.MemoryUse, err error) {
	for _, none := range limits {
		l, failed := m.find(none.UUID)
		if l.device != nil {
			l.now, failed = l.set(none)
			use = append(use, l.now)
		}
		err = errors.Join(err, failed)
	}
	return use, err
}

// limited is a GPU with what the driver reports for the cgroup.
type limited struct {
	memory
	name   string // in messages
	device nvml.Device
	now    probe.MemoryUse
	// counted is false if the driver reports nothing: no limit was ever set, or it has no limits.
	counted bool
}

// find reads what the GPU has. Like the other properties, the limits of a MIG device are not those
// of its GPU.
func (m memory) find(uuid string) (l limited, err error) {
	l = limited{memory: m, name: "GPU " + uuid}
	if strings.HasPrefix(uuid, "MIG-") {
		return l, fmt.Errorf("%s is a MIG device: %w by more than MIG", uuid, probe.ErrNotLimitable)
	}
	device, ret := m.library.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return l, fmt.Errorf("NVML has no handle of %s: %s", l.name, text(ret))
	}
	l.device = device
	r := &reader{library: m.library}
	if index, ok := get(r, "index", l.device.GetIndex, "nvmlDeviceGetIndex"); ok {
		l.name = fmt.Sprintf("GPU %d", index)
	}
	if r.err != nil {
		return l, fmt.Errorf("%s: %w", l.name, r.err)
	}
	l.now, l.counted, err = l.read(uuid)
	return l, err
}

// read returns no limit if the driver reports none: of a cgroup that never had a limit, one of its
// two backends says that it is not supported (3), and nvml.h that it is not found (6).
func (l limited) read(uuid string) (use probe.MemoryUse, counted bool, err error) {
	use.MemoryLimit = probe.MemoryLimit{UUID: uuid, Hard: probe.NoMemoryLimit}
	now, ret := l.device.GetMemoryLimits_v1(l.cgroup)
	switch ret {
	case nvml.SUCCESS:
		use.Soft, use.Hard, use.Used = now.SoftLimit, now.HardLimit, now.CurrentUsed
		return use, true, nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_FOUND:
		return use, false, nil
	}
	return use, false, l.failure("read the memory limit", ret)
}

// check returns an error if the driver would refuse a limit, or accept it and not keep it. To take a
// limit away is never refused here.
func (l limited) check(want probe.MemoryLimit) error {
	if isNone(want) {
		return nil
	}
	r := &reader{library: l.library}
	mig, _ := get(r, "MIG mode", func() (int, nvml.Return) {
		current, _, ret := l.device.GetMigMode()
		return current, ret
	}, "nvmlDeviceGetMigMode")
	// Absent without a driver that stays loaded by itself.
	persistence, known := get(r, "persistence mode", l.device.GetPersistenceMode, "nvmlDeviceGetPersistenceMode")
	total := r.memory(handle{l.device, 0}).Total
	switch {
	case r.err != nil:
		return fmt.Errorf("%s: %w", l.name, r.err)
	case mig == nvml.DEVICE_MIG_ENABLE:
		return fmt.Errorf("%s has MIG mode enabled, in which the driver counts no memory: %w", l.name, probe.ErrNotLimitable)
	case known && persistence == nvml.FEATURE_DISABLED: // guard: probe: no limit that would be forgotten
		return fmt.Errorf("%s: %w, and the driver would forget the limit: start nvidia-persistenced, or nvidia-smi -pm 1", l.name, probe.ErrNotPersistent)
	case want.Soft > want.Hard:
		return fmt.Errorf("%s: %w: %d bytes are wanted, and at most %d", l.name, probe.ErrInvalidLimit, want.Soft, want.Hard)
	case total != nil && (want.Soft > *total || want.Hard > *total && want.Hard != probe.NoMemoryLimit):
		return fmt.Errorf("%s: %w: it has %d MiB", l.name, probe.ErrInvalidLimit, *total>>20)
	case l.now.Used > want.Hard:
		return fmt.Errorf("%s: %w than the new limit of %d MiB: %d MiB", l.name, probe.ErrBelowUse, want.Hard>>20, l.now.Used>>20)
	}
	return nil
}

// set sets a limit and returns what the driver then reports.
func (l limited) set(want probe.MemoryLimit) (probe.MemoryUse, error) {
	if ret := l.device.SetMemoryLimits_v1(l.cgroup, want.Soft, want.Hard); ret != nvml.SUCCESS {
		return probe.MemoryUse{}, l.failure("set the memory limit", ret)
	}
	now, _, err := l.read(want.UUID)
	// guard: probe: limits are read back
	if err == nil && (!isSame(now.Soft, want.Soft) || !isSame(now.Hard, want.Hard)) {
		err = fmt.Errorf("%s: %w: soft %d and hard %d bytes were set, %d and %d are reported", l.name, probe.ErrNotKept, want.Soft, want.Hard, now.Soft, now.Hard)
	}
	return now, err
}

// isSame reports whether two limits differ by rounding at most.
func isSame(a, b uint64) bool { return max(a, b)-min(a, b) < maxRounding }

// restore sets what the GPUs had before. It tries each.
func restore(list []limited) (err error) {
	for _, l := range list {
		had := l.now.MemoryLimit
		ret := l.device.SetMemoryLimits_v1(l.cgroup, had.Soft, had.Hard)
		if ret == nvml.SUCCESS {
			continue
		}
		if now, _, readErr := l.read(had.UUID); readErr != nil || now.MemoryLimit != had {
			err = errors.Join(err, l.failure("take the memory limit back", ret))
		}
	}
	return err
}

// causes are those of NVML's errors of the call that sets a limit. nvml.h lists them, except
// NOT_FOUND, by which a cgroup without the controller's files is refused according to NVIDIA's page
// of memory partitioning. OPERATING_SYSTEM can have the same reason: the directory was just opened.
var causes = map[nvml.Return]error{
	nvml.ERROR_INVALID_ARGUMENT: probe.ErrInvalidLimit,
	nvml.ERROR_NOT_SUPPORTED:    probe.ErrNotLimitable,
	nvml.ERROR_NO_PERMISSION:    probe.ErrNotPermitted,
	nvml.ERROR_NOT_FOUND:        probe.ErrNoController,
	nvml.ERROR_OPERATING_SYSTEM: probe.ErrNoController,
}

func (l limited) failure(what string, ret nvml.Return) error {
	if cause := causes[ret]; cause != nil {
		return fmt.Errorf("%s: %s: %w (NVML: %s)", l.name, what, cause, text(ret))
	}
	return fmt.Errorf("%s: %s: NVML: %s", l.name, what, text(ret))
}
