//go:build cgo

package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// eventTypes are the events that end a wait. A GPU or driver need not have all of them.
const eventTypes = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError |
	nvml.EventTypeGpuUnavailableError | nvml.EventTypeGpuRecoveryAction

// pause is the least time between two observations, however many events there are: a container can
// cause some Xids as often as it likes.
const pause = time.Second

// maxXids bounds how many numbers of Xids are kept for a GPU between two observations.
const maxXids = 64

// Watch calls each with the health of the GPUs, and their use if use is true, at once, every interval
// and soon after an event. It returns the error of each, or why NVML cannot be asked any more.
// Afterwards the process cannot start programs.
func Watch(cfg config.Host, interval time.Duration, use bool, each func(probe.Observation) error) error {
	path, err := libraryPath(cfg, nvmlName)
	if err != nil {
		return err
	}
	h, err := host.Discover(cfg)
	if err != nil {
		return err
	}
	if h.Platform != "" {
		return fmt.Errorf("NVML does not watch the GPUs of %s", host.PlatformTitle(h.Platform))
	}
	return onThreads(cfg, nil, threadCount, func(threads chan<- func()) error {
		return opened(path, threads, func(l nvml.Interface) (hangs bool, err error) {
			w := &watcher{library: l, threads: threads, use: use, start: time.Now()}
			for _, g := range h.GPUs {
				w.gpus = append(w.gpus, watched{pci: g.BusID})
			}
			err = w.watch(interval, each)
			return errors.Is(err, errHangs), err
		})
	})
}

type watcher struct {
	library   nvml.Interface
	threads   chan<- func()
	gpus      []watched
	events    nvml.EventSet // nil if no GPU has events
	unwatched []string
	use       bool
	start     time.Time
}

// watched is a GPU, its handle once NVML has returned one, and the Xids since the last observation,
// with its use then.
type watched struct {
	pci    string
	device nvml.Device
	xids   []uint64
	usage  usage
}

func (w *watcher) watch(interval time.Duration, each func(probe.Observation) error) error {
	if err := on(w.threads, w.register); err != nil {
		return err
	}
	for {
		o, hangs := w.observe()
		if err := each(o); err != nil {
			return err
		}
		if hangs != nil {
			return hangs
		}
		if err := on(w.threads, func() error { w.wait(interval); return nil }); err != nil {
			return err
		}
	}
}

// register registers the events of each GPU. A GPU without events is observed at every interval.
func (w *watcher) register() error {
	has := func(symbol string) bool { return w.library.Extensions().LookupSymbol(symbol) == nil }
	if !has("nvmlEventSetCreate") || !has("nvmlDeviceRegisterEvents") || !has("nvmlDeviceGetSupportedEventTypes") ||
		!has("nvmlEventSetWait") && !has("nvmlEventSetWait_v2") {
		w.unwatched = []string{"this driver has no events"}
		return nil
	}
	set, ret := w.library.EventSetCreate()
	if ret != nvml.SUCCESS {
		w.unwatched = []string{"no events: " + text(ret)}
		return nil
	}
	for i := range w.gpus {
		g := &w.gpus[i]
		if g.device, ret = w.library.DeviceGetHandleByPciBusId(g.pci); ret != nvml.SUCCESS {
			g.device = nil
			w.unwatched = append(w.unwatched, fmt.Sprintf("%s has no events: %s", g.pci, text(ret)))
			continue
		}
		types, ret := g.device.GetSupportedEventTypes()
		if ret == nvml.SUCCESS && types&eventTypes == 0 {
			ret = nvml.ERROR_NOT_SUPPORTED
		}
		if ret == nvml.SUCCESS {
			ret = g.device.RegisterEvents(types&eventTypes, set)
		}
		if ret != nvml.SUCCESS {
			w.unwatched = append(w.unwatched, fmt.Sprintf("%s has no events: %s", g.pci, text(ret)))
			continue
		}
		w.events = set
	}
	return nil
}

// wait waits until the interval ends, or for pause after the first event.
func (w *watcher) wait(interval time.Duration) {
	deadline := time.Now().Add(interval)
	for woken := false; ; {
		left := time.Until(deadline)
		if left <= 0 {
			return
		}
		if w.events == nil {
			time.Sleep(left)
			return
		}
		event, ret := w.events.Wait(uint32(left/time.Millisecond) + 1)
		switch {
		case ret == nvml.ERROR_TIMEOUT:
			return
		case ret != nvml.SUCCESS:
			// Without the sleep, an error that stays would be a busy loop.
			w.unwatched, w.events = append(w.unwatched, "NVML's wait for events failed: "+text(ret)), nil
		case !woken:
			woken, deadline = true, time.Now().Add(min(pause, time.Until(deadline)))
			w.note(event)
		default:
			w.note(event)
		}
	}
}

func (w *watcher) note(e nvml.EventData) {
	i := slices.IndexFunc(w.gpus, func(g watched) bool { return g.device != nil && g.device == e.Device })
	if i < 0 || e.EventType != nvml.EventTypeXidCriticalError {
		return
	}
	if g := &w.gpus[i]; !slices.Contains(g.xids, e.EventData) && len(g.xids) < maxXids {
		g.xids = append(g.xids, e.EventData)
	}
}

// observe asks about each GPU. After errHangs, one of the threads is lost.
func (w *watcher) observe() (o probe.Observation, hangs error) {
	o = probe.Observation{Unwatched: strings.Join(w.unwatched, "; "), GPUs: []probe.Observed{}}
	for i := range w.gpus {
		g := &w.gpus[i]
		type observed struct {
			probe.Observed
			usage
		}
		before := g.usage
		seen, err := within(gpuLimit, w.threads, func() (o observed, _ error) {
			o.Observed, o.usage = observe(w.library, g.pci, w.use, before)
			return o, nil
		})
		if err != nil {
			seen.Observed = probe.Observed{PCI: g.pci, Error: "NVML does not answer about it: " + err.Error()}
			hangs = fmt.Errorf("NVML does not answer about %s: %w", g.pci, err)
		}
		seen.Xids, g.xids, g.usage = g.xids, nil, seen.usage
		o.GPUs = append(o.GPUs, seen.Observed)
		if hangs != nil {
			break
		}
	}
	if w.use {
		o.Clock = time.Since(w.start)
	}
	return o, hangs
}

// observe asks about one GPU, whose use was before at the previous observation.
func observe(l nvml.Interface, pci string, use bool, before usage) (probe.Observed, usage) {
	r := &reader{library: l}
	o := probe.Observed{PCI: pci}
	d := must(r, "handle", func() (nvml.Device, nvml.Return) { return l.DeviceGetHandleByPciBusId(pci) },
		"nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId")
	var now usage
	if r.err == nil {
		r.health(&o, d)
		if use {
			o.Use, now = observeUse(l, d, before)
		}
	}
	if r.err != nil {
		o.Error = r.err.Error()
		o.Lost, o.NeedsReset = r.code == nvml.ERROR_GPU_IS_LOST, r.code == nvml.ERROR_RESET_REQUIRED
	}
	return o, now
}

func (r *reader) health(o *probe.Observed, d nvml.Device) {
	o.UUID, _ = get(r, "UUID", d.GetUUID, "nvmlDeviceGetUUID")
	if action, ok := get(r, "recovery action", func() (uint32, nvml.Return) { return recoveryAction(d) }, "nvmlDeviceGetFieldValues"); ok {
		o.Recovery = &action
	}
	type rows struct{ pending, failed bool }
	remapped, _ := get(r, "remapped rows", func() (rows, nvml.Return) {
		_, _, pending, failed, ret := d.GetRemappedRows()
		return rows{pending, failed}, ret
	}, "nvmlDeviceGetRemappedRows")
	o.RemapPending, o.RemapFailed = remapped.pending, remapped.failed
	pages, _ := get(r, "retired pages", d.GetRetiredPagesPendingStatus, "nvmlDeviceGetRetiredPagesPendingStatus")
	o.PagesPending = pages == nvml.FEATURE_ENABLED
	memory, _ := get(r, "unrepairable memory", d.GetUnrepairableMemoryFlag_v1, "nvmlDeviceGetUnrepairableMemoryFlag_v1")
	o.Unrepairable = memory.BUnrepairableMemory != 0
	o.Uncorrected, _ = get(r, "ECC errors", func() (uint64, nvml.Return) {
		return d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	}, "nvmlDeviceGetTotalEccErrors")
}

// recoveryAction reads a field that drivers before 570 do not know.
func recoveryAction(d nvml.Device) (uint32, nvml.Return) {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	ret := d.GetFieldValues(values)
	switch code := nvml.Return(values[0].NvmlReturn); {
	case ret != nvml.SUCCESS:
		return 0, ret
	case code == nvml.ERROR_INVALID_ARGUMENT:
		return 0, nvml.ERROR_NOT_SUPPORTED
	case code != nvml.SUCCESS:
		return 0, code
	}
	return binary.NativeEndian.Uint32(values[0].Value[:4]), nvml.SUCCESS
}
