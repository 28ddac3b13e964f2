//go:build cgo

package nvml

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// Facts asks NVML for what the shim wants to know of this host's GPUs. The process
// can start no program afterwards.
func Facts(host config.Host) (device.Facts, error) {
	return ask(host, (*library).facts)
}

func (l *library) facts() (f device.Facts, err error) {
	h, err := l.host()
	if err != nil {
		return f, err
	}
	f = device.Facts{Driver: h.driver, CUDA: h.cuda, GPUs: []device.GPUFacts{}}
	for _, d := range h.gpus {
		g, err := l.gpuFacts(d)
		if err != nil {
			return f, fmt.Errorf("GPU %d: %w", d.index, err)
		}
		f.GPUs = append(f.GPUs, g)
	}
	return f, nil
}

// hostGPUs are a driver and its GPUs.
type hostGPUs struct {
	driver, cuda string
	// gpus are those that answer; lost says why the first of the others does not.
	gpus []gpu
	lost error
}

// host looks at the driver and its GPUs. A host without one is no error, unless all are
// lost.
func (l *library) host() (h hostGPUs, err error) {
	if h.driver, err = call(l, "driver version", []string{"nvmlSystemGetDriverVersion"}, l.SystemGetDriverVersion); err != nil {
		return h, err
	}
	if h.cuda, err = l.cudaVersion(); err != nil {
		return h, err
	}
	if h.gpus, h.lost, err = l.devices(); err != nil {
		return h, err
	}
	if len(h.gpus) == 0 {
		err = h.lost
	}
	return h, err
}

// cudaVersion is the newest CUDA of the driver, as "13.0".
func (l *library) cudaVersion() (string, error) {
	// 13000 is 13.0 (nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR).
	n, err := call(l, "CUDA version", []string{"nvmlSystemGetCudaDriverVersion"}, l.SystemGetCudaDriverVersion)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d.%d", n/1000, n%1000/10), nil
}

// gpu is one of NVML's GPUs.
type gpu struct {
	nvml.Device
	index int
}

// devices are the GPUs that answer. One that is lost does not hide the others; lost
// says why the first of them does not answer.
func (l *library) devices() (list []gpu, lost, err error) {
	n, err := call(l, "number of GPUs", []string{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"}, l.DeviceGetCount)
	if err != nil {
		return nil, nil, err
	}
	for i := range n {
		d, err := call(l, fmt.Sprintf("handle of GPU %d", i), []string{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
			func() (nvml.Device, nvml.Return) { return l.DeviceGetHandleByIndex(i) })
		switch {
		case err == nil:
			list = append(list, gpu{d, i})
		case lost == nil:
			lost = err
		}
	}
	return list, lost, nil
}

func (l *library) gpuFacts(d gpu) (device.GPUFacts, error) {
	g := device.GPUFacts{Index: d.index, Instances: []device.InstanceFacts{}}
	err := errors.Join(
		set(&g.Minor, l, "minor number", []string{"nvmlDeviceGetMinorNumber"}, d.GetMinorNumber),
		set(&g.UUID, l, "UUID", []string{"nvmlDeviceGetUUID"}, d.GetUUID),
		set(&g.Name, l, "name", []string{"nvmlDeviceGetName"}, d.GetName),
	)
	if err != nil {
		return g, first(err)
	}
	if g.BusID, err = l.busID(d); err != nil {
		return g, err
	}
	n, err := maybe(l, "brand", []string{"nvmlDeviceGetBrand"}, d.GetBrand)
	if err != nil {
		return g, err
	}
	g.Brand = brand(0)
	if n != nil {
		g.Brand = brand(int(*n))
	}
	if g.Arch, err = l.arch(d); err != nil {
		return g, err
	}
	if g.MIG, err = l.mig(d); err != nil || !g.MIG {
		return g, err
	}
	g.Instances, err = l.instances(d)
	return g, err
}

// set asks for a property and keeps it in to.
func set[T any](to *T, l *library, what string, symbols []string, fn func() (T, nvml.Return)) (err error) {
	*to, err = call(l, what, symbols, fn)
	return err
}

// first is the first of joined errors: a line of text has room for one.
func first(err error) error {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		return many.Unwrap()[0]
	}
	return err
}

func (l *library) busID(d nvml.Device) (string, error) {
	p, err := call(l, "PCI address", []string{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2"}, d.GetPciInfo)
	if err != nil {
		return "", err
	}
	return busIDOf(p), nil
}

// busIDOf is NVML's PCI address in procfs' form.
func busIDOf(p nvml.PciInfo) string {
	var s []byte
	for _, c := range p.BusId {
		if c == 0 {
			break
		}
		s = append(s, byte(c))
	}
	return busID(string(s))
}

// arch is the compute capability, "9.0"; empty for what has none.
func (l *library) arch(d nvml.Device) (string, error) {
	type capability struct{ major, minor int }
	c, err := maybe(l, "compute capability", []string{"nvmlDeviceGetCudaComputeCapability"}, func() (capability, nvml.Return) {
		major, minor, ret := d.GetCudaComputeCapability()
		return capability{major, minor}, ret
	})
	if err != nil || c == nil {
		return "", err
	}
	return fmt.Sprintf("%d.%d", c.major, c.minor), nil
}

// mig tells whether MIG mode is on.
func (l *library) mig(d nvml.Device) (bool, error) {
	on, err := maybe(l, "MIG mode", []string{"nvmlDeviceGetMigMode"}, func() (bool, nvml.Return) {
		current, _, ret := d.GetMigMode()
		return current == nvml.DEVICE_MIG_ENABLE, ret
	})
	return on != nil && *on, err
}

// migDevice is a MIG device of a GPU, with its index there.
type migDevice struct {
	nvml.Device
	index int
}

// migDevices are the MIG devices of a GPU. Indices have gaps where instances were
// destroyed.
func (l *library) migDevices(d gpu) ([]migDevice, error) {
	n, err := maybe(l, "number of MIG devices", []string{"nvmlDeviceGetMaxMigDeviceCount"}, d.GetMaxMigDeviceCount)
	if err != nil || n == nil {
		return nil, err
	}
	var list []migDevice
	for i := range *n {
		m, err := maybe(l, fmt.Sprintf("handle of MIG device %d", i), []string{"nvmlDeviceGetMigDeviceHandleByIndex"},
			func() (nvml.Device, nvml.Return) { return d.GetMigDeviceHandleByIndex(i) })
		if err != nil {
			return nil, err
		}
		if m != nil {
			list = append(list, migDevice{*m, i})
		}
	}
	return list, nil
}

func (l *library) instances(d gpu) ([]device.InstanceFacts, error) {
	list := []device.InstanceFacts{}
	migs, err := l.migDevices(d)
	if err != nil {
		return nil, err
	}
	for _, m := range migs {
		in := device.InstanceFacts{Index: m.index}
		err := errors.Join(
			set(&in.UUID, l, "UUID", []string{"nvmlDeviceGetUUID"}, m.GetUUID),
			set(&in.GI, l, "GPU instance", []string{"nvmlDeviceGetGpuInstanceId"}, m.GetGpuInstanceId),
			set(&in.CI, l, "compute instance", []string{"nvmlDeviceGetComputeInstanceId"}, m.GetComputeInstanceId),
			set(&in.Name, l, "name", []string{"nvmlDeviceGetName"}, m.GetName),
		)
		if err != nil {
			return nil, fmt.Errorf("MIG device %d: %w", m.index, first(err))
		}
		in.Name = profile(in.Name)
		list = append(list, in)
	}
	return list, nil
}
