//go:build cgo

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// Facts returns the facts that the shim needs. The process can start no program afterwards.
func Facts(host config.Host) (device.Facts, error) {
	return ask(host, func(l *library) (device.Facts, error) {
		h, err := l.host()
		if err != nil {
			return device.Facts{}, err
		}
		f := device.Facts{Driver: h.driver, CUDA: h.cuda, GPUs: []device.GPUFacts{}}
		for _, g := range h.gpus {
			r := &reader{library: l}
			f.GPUs = append(f.GPUs, r.gpuFacts(g))
			if r.err != nil {
				return f, fmt.Errorf("GPU %d: %w", g.index, r.err)
			}
		}
		return f, nil
	})
}

// hostGPUs are a driver and its GPUs.
type hostGPUs struct {
	driver, cuda string
	// gpus are the GPUs that answer; lost says why the first of the others does not.
	gpus []gpu
	lost error
}

// gpu is a GPU or a MIG device with its index.
type gpu struct {
	nvml.Device
	index int
}

// host lists the GPUs. A lost GPU does not hide the others; no GPU at all is an error only if all
// are lost.
func (l *library) host() (hostGPUs, error) {
	r := &reader{library: l}
	h := hostGPUs{driver: must(r, "driver version", l.SystemGetDriverVersion, "nvmlSystemGetDriverVersion")}
	// 13000 is 13.0 (nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR).
	cuda := must(r, "CUDA version", l.SystemGetCudaDriverVersion, "nvmlSystemGetCudaDriverVersion")
	h.cuda = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	count := must(r, "number of GPUs", l.DeviceGetCount, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
	for i := range count {
		one := &reader{library: l}
		d := must(one, fmt.Sprintf("handle of GPU %d", i), func() (nvml.Device, nvml.Return) { return l.DeviceGetHandleByIndex(i) },
			"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
		switch {
		case one.err == nil:
			h.gpus = append(h.gpus, gpu{d, i})
		case h.lost == nil:
			h.lost = one.err
		}
	}
	if r.err == nil && len(h.gpus) == 0 {
		return h, h.lost
	}
	return h, r.err
}

func (r *reader) gpuFacts(d gpu) device.GPUFacts {
	g := device.GPUFacts{
		Index: d.index,
		Minor: must(r, "minor number", d.GetMinorNumber, "nvmlDeviceGetMinorNumber"),
		UUID:  must(r, "UUID", d.GetUUID, "nvmlDeviceGetUUID"),
		Name:  must(r, "name", d.GetName, "nvmlDeviceGetName"),
		BusID: busID(r.pciAddress(d)),
		Brand: brand(0), Instances: []device.InstanceFacts{},
	}
	if n := get(r, "brand", d.GetBrand, "nvmlDeviceGetBrand"); n != nil {
		g.Brand = brand(int(*n))
	}
	arch := get(r, "compute capability", func() (string, nvml.Return) {
		major, minor, ret := d.GetCudaComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), ret
	}, "nvmlDeviceGetCudaComputeCapability")
	if arch != nil {
		g.Arch = *arch
	}
	mig := get(r, "MIG mode", func() (int, nvml.Return) {
		current, _, ret := d.GetMigMode()
		return current, ret
	}, "nvmlDeviceGetMigMode")
	if g.MIG = mig != nil && *mig == nvml.DEVICE_MIG_ENABLE; !g.MIG {
		return g
	}
	for _, m := range r.migDevices(d) {
		g.Instances = append(g.Instances, device.InstanceFacts{
			Index: m.index,
			UUID:  must(r, "UUID", m.GetUUID, "nvmlDeviceGetUUID"),
			GI:    must(r, "GPU instance", m.GetGpuInstanceId, "nvmlDeviceGetGpuInstanceId"),
			CI:    must(r, "compute instance", m.GetComputeInstanceId, "nvmlDeviceGetComputeInstanceId"),
			Name:  profile(must(r, "name", m.GetName, "nvmlDeviceGetName")),
		})
	}
	return g
}

func (r *reader) pciAddress(d gpu) string {
	var text []byte
	for _, c := range must(r, "PCI address", d.GetPciInfo, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2").BusId {
		text = append(text, byte(c))
	}
	return unix.ByteSliceToString(text) // up to the first 0
}

// migDevices lists the MIG devices of a GPU. Indices have gaps if instances were destroyed.
func (r *reader) migDevices(d gpu) []gpu {
	count := get(r, "number of MIG devices", d.GetMaxMigDeviceCount, "nvmlDeviceGetMaxMigDeviceCount")
	if count == nil {
		return nil
	}
	var list []gpu
	for i := range *count {
		m := get(r, fmt.Sprintf("handle of MIG device %d", i),
			func() (nvml.Device, nvml.Return) { return d.GetMigDeviceHandleByIndex(i) }, "nvmlDeviceGetMigDeviceHandleByIndex")
		if m != nil {
			list = append(list, gpu{*m, i})
		}
	}
	return list
}
