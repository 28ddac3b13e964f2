//go:build cgo

package nvml

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// ReleaseMemory releases q.ReleaseMemory, which removed cgroups below the cgroup had requested, there
// and in the cgroups above. It tries each GPU.
func ReleaseMemory(host config.Host, q probe.Questions) error {
	return withMemory(host, q, func(m memory) (err error) {
		for _, r := range q.ReleaseMemory {
			err = errors.Join(err, m.release(r))
		}
		return err
	})
}

// release lowers the soft limit, which with the controller dmem is the sum of those below, by what no
// cgroup below requests, but by no more than was requested. NVML lowers those above with it. The
// internal backend has no such sums, and counts nothing here.
func (m memory) release(requested probe.MemoryLimit) error {
	l, err := m.find(requested.UUID)
	if err != nil || !l.counted {
		return err
	}
	below, err := m.sumBelow(requested.UUID)
	if err != nil {
		return err
	}
	left := l.now.Soft - min(below, l.now.Soft) // guard: probe: no request of another cgroup is released
	if left > requested.Soft && !isSame(left, requested.Soft) {
		left = requested.Soft
	}
	if left == 0 {
		return nil
	}
	want := l.now.MemoryLimit
	want.Soft -= left
	_, err = l.set(want)
	return err
}

// sumBelow adds up what the cgroups directly below request.
func (m memory) sumBelow(uuid string) (sum uint64, err error) {
	entries, err := os.ReadDir(m.cgroup)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		below := memory{m.library, filepath.Join(m.cgroup, e.Name())}
		l, err := below.find(uuid)
		if _, gone := os.Lstat(below.cgroup); err != nil && !errors.Is(gone, fs.ErrNotExist) {
			return 0, err
		}
		sum += l.now.Soft
	}
	return sum, nil
}
