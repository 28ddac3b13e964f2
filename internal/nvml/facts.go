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

// snapshot reads the facts about all GPUs, and their state if live is true, with what the cgroups use.
// A lost or hanging GPU does not hide the others; it is an error if no GPU answers. Each GPU is asked on one of threads,
// which is abandoned at the time limit; without threads, on this one, without a limit.
func snapshot(l nvml.Interface, live bool, threads chan<- func(), cgroups ...string) (Snapshot, error) {
	r := &reader{library: l}
	s := Snapshot{Driver: must(r, "driver version", l.SystemGetDriverVersion, "nvmlSystemGetDriverVersion"), GPUs: []GPU{}}
	s.CUDA = cudaVersion(must(r, "CUDA version", l.SystemGetCudaDriverVersion, "nvmlSystemGetCudaDriverVersion"))
	count := must(r, "number of GPUs", l.DeviceGetCount, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
	deadline := time.Now().Add(gpusLimit)
	for i := range count {
		g, err := within(min(gpuLimit, time.Until(deadline)), threads, func() (GPU, error) { return readGPU(l, i, live, cgroups) })
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
func readGPU(l nvml.Interface, i int, live bool, cgroups []string) (GPU, error) {
	r := &reader{library: l}
	d := must(r, fmt.Sprintf("handle of GPU %d", i), func() (nvml.Device, nvml.Return) { return l.DeviceGetHandleByIndex(i) },
		"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
	if r.err != nil {
		return GPU{}, r.err
	}
	return r.gpu(handle{d, i}, live, cgroups), nil
}

func (r *reader) gpu(d handle, live bool, cgroups []string) GPU {
	g := GPU{Facts: r.facts(d)}
	if live {
		g.State = r.state(d)
		if u, ok := get(r, "utilization", d.GetUtilizationRates, "nvmlDeviceGetUtilizationRates"); ok {
			g.Utilization.GPU = &u.Gpu
		}
		g.Sensors = r.sensors(d)
		if !g.Facts.MIG {
			r.utilize(d, g.State.Processes)
			g.Cgroups = r.useOf(d, cgroups)
		}
	}
	if g.Facts.MIG {
		g.State.Processes = []Process{} // they use the MIG devices
		r.migDevices(d, live, &g)
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
	r.reject(g.BusID == "", "PCI address", unix.ByteSliceToString(address))
	r.reject(!device.Inventory{}.IsFull(g.UUID), "UUID", g.UUID)
	number, _ := get(r, "brand", d.GetBrand, "nvmlDeviceGetBrand")
	g.Brand = brand(int(number))
	arch, ok := get(r, "compute capability", func() (v [2]int, ret nvml.Return) {
		v[0], v[1], ret = d.GetCudaComputeCapability()
		return v, ret
	}, "nvmlDeviceGetCudaComputeCapability")
	r.reject(ok && (arch[0] < 1 || arch[0] > 99 || arch[1] < 0), "compute capability", fmt.Sprintf("%d.%d", arch[0], arch[1]))
	if ok && r.err == nil {
		g.Arch = fmt.Sprintf("%d.%d", arch[0], arch[1])
	}
	g.MIG = r.isMIG(d)
	return g
}

func (r *reader) isMIG(d nvml.Device) bool {
	mode, _ := get(r, "MIG mode", func() (int, nvml.Return) {
		current, _, ret := d.GetMigMode()
		return current, ret
	}, "nvmlDeviceGetMigMode")
	return mode == nvml.DEVICE_MIG_ENABLE
}

// instanceFacts reads the facts about a MIG device.
func (r *reader) instanceFacts(m handle) device.InstanceFacts {
	in := device.InstanceFacts{
		Index: m.index,
		UUID:  must(r, "UUID", m.GetUUID, "nvmlDeviceGetUUID"),
		GI:    must(r, "GPU instance", m.GetGpuInstanceId, "nvmlDeviceGetGpuInstanceId"),
		CI:    must(r, "compute instance", m.GetComputeInstanceId, "nvmlDeviceGetComputeInstanceId"),
		Name:  profile(must(r, "name", m.GetName, "nvmlDeviceGetName")),
	}
	r.reject(!device.Inventory{}.IsFull(in.UUID), "UUID", in.UUID)
	r.reject(in.GI < 0 || in.GI > maxMIG, "GPU instance", in.GI)
	r.reject(in.CI < 0 || in.CI > maxMIG, "compute instance", in.CI)
	return in
}

// reject makes an answer of NVML that cannot be true an error.
func (r *reader) reject(untrue bool, what string, answer any) {
	if untrue && r.err == nil {
		r.err = fmt.Errorf("NVML reports the %s %.64q", what, fmt.Sprint(answer))
	}
}

// maxMIG is more than any GPU has MIG devices, and more than their ids: an H200 has 7, and ids up to 14.
const maxMIG = 64

// migDevices adds the MIG devices of a GPU, and their state if live is true. One that NVML does not
// describe has an error of its own.
func (r *reader) migDevices(d handle, live bool, g *GPU) {
	count := must(r, "number of MIG devices", d.GetMaxMigDeviceCount, "nvmlDeviceGetMaxMigDeviceCount")
	r.reject(count < 0 || count > maxMIG, "number of MIG devices", count)
	if r.err != nil {
		g.State.unlisted = "MIG devices"
		return
	}
	named := map[[2]int]int{} // how many MIG devices NVML reports with these ids
	for i := range count {
		one := &reader{library: r.library}
		facts, state, exists := one.migDevice(d, i, live)
		if one.code == nvml.ERROR_NO_PERMISSION {
			g.State.unlisted = "MIG devices"
		}
		if !exists {
			continue
		}
		if one.err == nil {
			named[[2]int{facts.GI, facts.CI}]++
		} else {
			facts.Error = one.err.Error()
		}
		g.Facts.Instances = append(g.Facts.Instances, facts)
		if live {
			g.Instances = append(g.Instances, state)
		}
	}
	for i, in := range g.Facts.Instances {
		if n := named[[2]int{in.GI, in.CI}]; n > 1 && in.Error == "" { // guard: probe: MIG devices are told apart
			in.Error = fmt.Sprintf("NVML reports the instances %d/%d for %d MIG devices", in.GI, in.CI, n)
		}
		if in.Error != "" {
			in.Error = fmt.Sprintf("MIG device %d:%d: %s", d.index, in.Index, in.Error)
			g.Error = cmp.Or(g.Error, in.Error)
		}
		g.Facts.Instances[i] = in
	}
}

// migDevice reads the MIG device with an index. Indices have gaps if instances were destroyed.
func (r *reader) migDevice(d handle, index int, live bool) (facts device.InstanceFacts, s State, exists bool) {
	m := must(r, "handle", func() (m nvml.Device, _ nvml.Return) {
		m, r.code = d.GetMigDeviceHandleByIndex(index)
		return m, r.code
	}, "nvmlDeviceGetMigDeviceHandleByIndex")
	switch r.code {
	case nvml.ERROR_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NO_PERMISSION:
		return facts, s, false
	}
	if r.err != nil {
		return device.InstanceFacts{Index: index}, s, true
	}
	facts = r.instanceFacts(handle{m, index})
	if live {
		s = r.state(handle{m, index})
	}
	return facts, s, true
}

// threadCount is how many threads ask about GPUs: within gpusLimit two can hang.
const threadCount = 3

// ask takes a snapshot with NVML open.
func ask(host config.Host, live bool, cgroups ...string) (s Snapshot, err error) {
	path, err := libraryPath(host, nvmlName)
	if err == nil {
		err = onThreads(host, nil, threadCount, func(threads chan<- func()) error {
			s, err = withLibrary(path, live, threads, cgroups...)
			return err
		})
	}
	return s, err
}

// withLibrary takes a snapshot on threads, or without them on this thread.
func withLibrary(path string, live bool, threads chan<- func(), cgroups ...string) (s Snapshot, err error) {
	err = opened(path, threads, func(l nvml.Interface) (hangs bool, err error) {
		s, err = snapshot(l, live, threads, cgroups...)
		return s.hangs, err
	})
	return s, err
}

// Live returns the state of the GPUs, and what the cgroups with these directories use. A GPU that does
// not answer has an error of its own.
// Afterwards the process cannot start programs.
func Live(host config.Host, cgroups []string) (Snapshot, error) { return ask(host, true, cgroups...) }
