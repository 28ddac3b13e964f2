//go:build cgo

package nvml

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Linked reports whether this program can load NVML.
const Linked = true

// ask takes a snapshot with NVML open.
func ask(host config.Host, live bool) (s Snapshot, err error) {
	path, err := libraryPath(host, nvmlName)
	if err == nil {
		err = isolated(host, nil, func() error {
			s, err = withLibrary(path, live)
			return err
		})
	}
	return s, err
}

// isolated runs fn, which may still make the calls in allowed, on a thread that ends afterwards.
func isolated(host config.Host, allowed []uint32, fn func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread cannot regain its rights, and ends with this function.
		runtime.LockOSThread()
		if err = isolate(host.DevRoot, allowed); err == nil {
			err = fn()
		}
	}()
	<-done
	return err
}

func withLibrary(path string, live bool) (Snapshot, error) {
	// Loaded here first, because go-nvml does not return the reason why a library cannot be loaded.
	first := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := first.Open(); err != nil {
		return Snapshot{}, fmt.Errorf("load NVML: %w", err)
	}
	defer func() { _ = first.Close() }()
	l := nvml.New(nvml.WithLibraryPath(path))
	if ret := l.Init(); ret != nvml.SUCCESS {
		return Snapshot{}, fmt.Errorf("NVML cannot be initialized: %s (%s; nvidia-smi on this host should report the same)", text(ret), path)
	}
	defer func() { _ = l.Shutdown() }()
	return snapshot(l, live)
}

// text returns NVML's text for a return code, in one line.
func text(ret nvml.Return) string { return strings.Join(strings.Fields(ret.Error()), " ") }
