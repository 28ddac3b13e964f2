//go:build cgo

package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// Facts returns the facts that the shim needs. Afterwards the process cannot start programs.
func Facts(host config.Host) (device.Facts, error) {
	s, err := ask(host, false)
	if errors.Is(err, errAbsent) { // a Tegra need not have NVML
		return cudaFacts(host)
	}
	if err != nil {
		return device.Facts{}, err
	}
	f := device.Facts{Driver: s.Driver, CUDA: s.CUDA, GPUs: []device.GPUFacts{}}
	for _, g := range s.GPUs {
		f.GPUs = append(f.GPUs, g.Facts)
	}
	if s.Error != "" {
		f.GPUs = append(f.GPUs, device.GPUFacts{Index: -1, Error: s.Error, Instances: []device.InstanceFacts{}})
	}
	return f, nil
}

// gpuLimit bounds the questions about one GPU, and gpusLimit those about all of them: less than the
// time limit of the whole question, so that one hanging GPU does not hide the others. A GPU that
// nothing uses is initialized first, which takes about a second without persistence mode. Variables
// for the tests.
var gpuLimit, gpusLimit = 3 * time.Second, 7 * time.Second

// snapshot reads the facts about all GPUs, and their state if live is true. A lost or hanging GPU
// does not hide the others; it is an error if no GPU answers. Each GPU is asked on one of threads,
// which is abandoned at the time limit; without threads, on this one, without a limit.
func snapshot(l nvml.Interface, live bool, threads chan<- func()) (Snapshot, error) {
	r := &reader{library: l}
	s := Snapshot{Driver: must(r, "driver version", l.SystemGetDriverVersion, "nvmlSystemGetDriverVersion"), GPUs: []GPU{}}
	s.CUDA = cudaVersion(must(r, "CUDA version", l.SystemGetCudaDriverVersion, "nvmlSystemGetCudaDriverVersion"))
	count := must(r, "number of GPUs", l.DeviceGetCount, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
	deadline := time.Now().Add(gpusLimit)
	for i := range count {
		g, err := within(min(gpuLimit, time.Until(deadline)), threads, func() (GPU, error) { return readGPU(l, i, live) })
		if errors.Is(err, errHangs) {
			s.hangs = true
			err = fmt.Errorf("NVML does not answer about GPU %d: %w", i, err)
		}
		switch {
		case err == nil:
			s.GPUs = append(s.GPUs, g)
		case s.Error == "":
			s.Error = err.Error()
		}
	}
	if r.err == nil && len(s.GPUs) == 0 && s.Error != "" {
		return s, errors.New(s.Error)
	}
	return s, r.err
}

// errHangs means that NVML did not answer within the time limit.
var errHangs = errors.New("the call hangs")

// within runs fn on one of threads and returns what it returns, or errHangs after limit.
func within[T any](limit time.Duration, threads chan<- func(), fn func() (T, error)) (none T, _ error) {
	if threads == nil {
		return fn()
	}
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	timeout := time.After(limit)
	select {
	case threads <- func() { value, err := fn(); done <- answer{value, err} }:
	case <-timeout: // every thread hangs
		return none, errHangs
	}
	select {
	case a := <-done:
		return a.value, a.err
	case <-timeout:
		return none, errHangs
	}
}

// readGPU reads one GPU. The error means that NVML has no handle of it.
func readGPU(l nvml.Interface, i int, live bool) (GPU, error) {
	r := &reader{library: l}
	d := must(r, fmt.Sprintf("handle of GPU %d", i), func() (nvml.Device, nvml.Return) { return l.DeviceGetHandleByIndex(i) },
		"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
	if r.err != nil {
		return GPU{}, r.err
	}
	return r.gpu(handle{d, i}, live), nil
}

func (r *reader) gpu(d handle, live bool) GPU {
	g := GPU{Facts: r.facts(d)}
	if live {
		g.State = r.state(d)
		if u, ok := get(r, "utilization", d.GetUtilizationRates, "nvmlDeviceGetUtilizationRates"); ok {
			g.Utilization.GPU = &u.Gpu
		}
		g.Sensors = r.sensors(d)
		if !g.Facts.MIG {
			r.utilize(d, g.State.Processes)
		}
	}
	if g.Facts.MIG {
		g.State.Processes = []Process{} // they use the MIG devices
		list, complete := r.migDevices(d)
		if !complete {
			g.State.unlisted = "MIG devices"
		}
		for _, m := range list {
			one := &reader{library: r.library, err: r.err}
			facts := one.instanceFacts(m)
			if live {
				g.Instances = append(g.Instances, one.state(m))
			}
			if one.err != nil {
				facts.Error = fmt.Sprintf("MIG device %d:%d: %s", d.index, m.index, one.err)
				g.Error = cmp.Or(g.Error, facts.Error)
			}
			g.Facts.Instances = append(g.Facts.Instances, facts)
		}
	}
	if r.err != nil {
		g.Error = r.err.Error()
		g.Facts.Error = fmt.Sprintf("GPU %d: %s", d.index, r.err)
	}
	return g
}

// facts reads the PCI address first: it identifies a GPU whose other properties cannot be read.
func (r *reader) facts(d handle) device.GPUFacts {
	var address []byte
	for _, c := range must(r, "PCI address", d.GetPciInfo, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2").BusId {
		address = append(address, byte(c))
	}
	g := device.GPUFacts{
		BusID: device.BusID(unix.ByteSliceToString(address)), // up to the first 0
		Index: d.index,
		Minor: must(r, "minor number", d.GetMinorNumber, "nvmlDeviceGetMinorNumber"),
		UUID:  must(r, "UUID", d.GetUUID, "nvmlDeviceGetUUID"),
		Name:  must(r, "name", d.GetName, "nvmlDeviceGetName"),

		Instances: []device.InstanceFacts{},
	}
	number, _ := get(r, "brand", d.GetBrand, "nvmlDeviceGetBrand")
	g.Brand = brand(int(number))
	g.Arch, _ = get(r, "compute capability", func() (string, nvml.Return) {
		major, minor, ret := d.GetCudaComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), ret
	}, "nvmlDeviceGetCudaComputeCapability")
	mode, _ := get(r, "MIG mode", func() (int, nvml.Return) {
		current, _, ret := d.GetMigMode()
		return current, ret
	}, "nvmlDeviceGetMigMode")
	g.MIG = mode == nvml.DEVICE_MIG_ENABLE
	return g
}

func (r *reader) instanceFacts(m handle) device.InstanceFacts {
	return device.InstanceFacts{
		Index: m.index,
		UUID:  must(r, "UUID", m.GetUUID, "nvmlDeviceGetUUID"),
		GI:    must(r, "GPU instance", m.GetGpuInstanceId, "nvmlDeviceGetGpuInstanceId"),
		CI:    must(r, "compute instance", m.GetComputeInstanceId, "nvmlDeviceGetComputeInstanceId"),
		Name:  profile(must(r, "name", m.GetName, "nvmlDeviceGetName")),
	}
}

// migDevices lists the MIG devices of a GPU, and reports whether NVML has listed all of them.
// Indices have gaps if instances were destroyed.
func (r *reader) migDevices(d handle) (list []handle, complete bool) {
	count, complete := get(r, "number of MIG devices", d.GetMaxMigDeviceCount, "nvmlDeviceGetMaxMigDeviceCount")
	for i := range count {
		ret := nvml.ERROR_UNKNOWN
		m, ok := get(r, fmt.Sprintf("handle of MIG device %d", i), func() (m nvml.Device, _ nvml.Return) {
			m, ret = d.GetMigDeviceHandleByIndex(i)
			return m, ret
		}, "nvmlDeviceGetMigDeviceHandleByIndex")
		if ok {
			list = append(list, handle{m, i})
		}
		complete = complete && (ok || ret == nvml.ERROR_NOT_FOUND)
	}
	return list, complete
}

// threadCount is how many threads ask about GPUs: within gpusLimit two can hang.
const threadCount = 3

// ask takes a snapshot with NVML open.
func ask(host config.Host, live bool) (s Snapshot, err error) {
	path, err := libraryPath(host, nvmlName)
	if err == nil {
		err = onThreads(host, nil, threadCount, func(threads chan<- func()) error {
			s, err = withLibrary(path, live, threads)
			return err
		})
	}
	return s, err
}

// withLibrary takes a snapshot on threads, or without them on this thread.
func withLibrary(path string, live bool, threads chan<- func()) (s Snapshot, err error) {
	err = opened(path, threads, func(l nvml.Interface) (hangs bool, err error) {
		s, err = snapshot(l, live, threads)
		return s.hangs, err
	})
	return s, err
}

// Live returns the state of the GPUs. A GPU that does not answer has an error of its own.
// Afterwards the process cannot start programs.
func Live(host config.Host) (Snapshot, error) { return ask(host, true) }
