//go:build cgo

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Infos asks NVML what the GPUs of this host are. The process can start no program
// afterwards.
func Infos(host config.Host) (Snapshot, error) {
	return ask(host, func(l *library) (Snapshot, error) { return l.snapshot((*reader).info) })
}

// States asks NVML what the GPUs of this host do now. The process can start no program
// afterwards.
func States(host config.Host) (Snapshot, error) {
	return ask(host, func(l *library) (Snapshot, error) { return l.snapshot((*reader).state) })
}

func (l *library) snapshot(read func(*reader, gpu, *GPU)) (s Snapshot, err error) {
	h, err := l.host()
	if err != nil {
		return s, err
	}
	s = Snapshot{Driver: h.driver, CUDA: h.cuda, GPUs: []GPU{}}
	if h.lost != nil {
		s.Error = h.lost.Error()
	}
	for _, d := range h.gpus {
		g := GPU{}
		r := &reader{library: l, all: h.gpus}
		g.Facts, r.err = l.gpuFacts(d)
		read(r, d, &g)
		if r.err != nil {
			g.Error = r.err.Error()
		}
		s.GPUs = append(s.GPUs, g)
	}
	// Only here is every GPU's address known.
	for i := range s.GPUs {
		if info := s.GPUs[i].Info; info != nil {
			info.nameLinks(s.GPUs)
		}
	}
	return s, nil
}

// reader asks for one GPU's properties until one fails for another reason than that
// the GPU has not got it.
type reader struct {
	*library
	all []gpu
	err error
}

// get is nil where the property does not exist, or something failed before.
func get[T any](r *reader, what, symbol string, fn func() (T, nvml.Return)) *T {
	if r.err != nil {
		return nil
	}
	v, err := maybe(r.library, what, []string{symbol}, fn)
	r.err = err
	return v
}

// as converts what NVML has to what the snapshot has.
func as[T, F any](v *F, convert func(F) T) *T {
	if v == nil {
		return nil
	}
	out := convert(*v)
	return &out
}

func watts(milli uint32) float64 { return float64(milli) / 1000 }

// memory is in bytes. What the driver keeps for itself counts as used by nobody, as in
// nvidia-smi, where the driver is new enough to tell.
func (r *reader) memory(d nvml.Device) (total, used *uint64) {
	if m := get(r, "memory", "nvmlDeviceGetMemoryInfo_v2", d.GetMemoryInfo_v2); m != nil {
		return &m.Total, &m.Used
	}
	if m := get(r, "memory", "nvmlDeviceGetMemoryInfo", d.GetMemoryInfo); m != nil {
		return &m.Total, &m.Used
	}
	return nil, nil
}
