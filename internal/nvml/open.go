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

// library is a loaded and initialised libnvidia-ml.
type library struct {
	nvml.Interface
	known map[string]bool // symbols that the library has, or has not
}

// ask runs fn with NVML open, on a thread that ends afterwards.
func ask[T any](host config.Host, fn func(*library) (T, error)) (out T, err error) {
	path, err := libraryPath(host)
	if err != nil {
		return out, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread cannot get its rights back, and ends with this function.
		runtime.LockOSThread()
		if err = isolate(host.DevRoot); err != nil {
			return
		}
		out, err = withLibrary(path, fn)
	}()
	<-done
	return out, err
}

func withLibrary[T any](path string, fn func(*library) (T, error)) (out T, err error) {
	// Loaded here first, because go-nvml does not return the reason why a library cannot be loaded.
	first := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := first.Open(); err != nil {
		return out, fmt.Errorf("load NVML: %w", err)
	}
	defer func() { _ = first.Close() }()
	l := &library{Interface: nvml.New(nvml.WithLibraryPath(path)), known: map[string]bool{}}
	if ret := l.Init(); ret != nvml.SUCCESS {
		return out, fmt.Errorf("NVML does not start: %s (%s; nvidia-smi on this host should say the same)", text(ret), path)
	}
	defer func() { _ = l.Shutdown() }()
	return fn(l)
}

// text returns NVML's text for a return code, in one line.
func text(ret nvml.Return) string { return strings.Join(strings.Fields(ret.Error()), " ") }
