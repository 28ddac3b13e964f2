//go:build cgo

package nvml

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// library is a loaded and initialised libnvidia-ml.
type library struct {
	nvml.Interface
	known map[string]bool // by symbol
}

// ask runs fn with NVML open, on a thread that is spent afterwards.
func ask[T any](host config.Host, fn func(*library) (T, error)) (out T, err error) {
	path, err := libraryPath(host)
	if err != nil {
		return out, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: what the thread may not do any more stays with it, and it
		// ends with this function.
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
	// Loaded here first: go-nvml does not say why it cannot be.
	first := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := first.Open(); err != nil {
		return out, fmt.Errorf("load NVML: %w", err)
	}
	defer func() { _ = first.Close() }()
	l := &library{Interface: nvml.New(nvml.WithLibraryPath(path)), known: map[string]bool{}}
	if ret := l.Init(); ret != nvml.SUCCESS {
		return out, fmt.Errorf("NVML does not start: %s (%s; nvidia-smi on this host should say the same)", text(ret), path)
	}
	defer func() {
		if ret := l.Shutdown(); ret != nvml.SUCCESS && err == nil {
			err = fmt.Errorf("NVML does not shut down: %s", text(ret))
		}
	}()
	return fn(l)
}

// text is NVML's own for a return code.
func text(ret nvml.Return) string {
	// Some of its texts end with a line break or are sentences.
	s := []rune(ret.Error())
	for i, r := range s {
		if r < ' ' {
			s[i] = ' '
		}
	}
	return string(s)
}

// has tells whether the library has one of the functions. go-nvml binds a function
// when it is called for the first time, and one that an old driver does not have
// ends the process.
func (l *library) has(symbols ...string) bool {
	for _, s := range symbols {
		known, looked := l.known[s]
		if !looked {
			known = l.Extensions().LookupSymbol(s) == nil
			l.known[s] = known
		}
		if known {
			return true
		}
	}
	return false
}

// absent tells whether a return code means that this GPU, or this driver, does not
// have the property at all, or does not show it now.
func absent(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_PERMISSION, nvml.ERROR_NO_DATA,
		nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED, nvml.ERROR_NOT_FOUND, nvml.ERROR_NOT_READY:
		return true
	}
	return false
}

// errNoFunction stands for a function that the library does not have.
var errNoFunction = errors.New("this driver's NVML does not have the function")

// call asks for a property that the answer cannot do without.
func call[T any](l *library, what string, symbols []string, fn func() (T, nvml.Return)) (T, error) {
	var none T
	if !l.has(symbols...) {
		return none, fmt.Errorf("NVML cannot tell the %s: %w", what, errNoFunction)
	}
	v, ret := fn()
	if ret != nvml.SUCCESS {
		return none, fmt.Errorf("NVML cannot tell the %s: %s", what, text(ret))
	}
	return v, nil
}

// maybe asks for a property that a GPU need not have: nil where it does not.
func maybe[T any](l *library, what string, symbols []string, fn func() (T, nvml.Return)) (*T, error) {
	if !l.has(symbols...) {
		return nil, nil
	}
	v, ret := fn()
	switch {
	case ret == nvml.SUCCESS:
		return &v, nil
	case absent(ret):
		return nil, nil
	}
	return nil, fmt.Errorf("NVML cannot tell the %s: %s", what, text(ret))
}
