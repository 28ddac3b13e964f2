//go:build cgo

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// reader reads properties until one fails for another reason than that the GPU does not have it.
type reader struct {
	*library
	err error
}

// must reads a property that the answer cannot do without.
func must[T any](r *reader, what string, fn func() (T, nvml.Return), symbols ...string) (v T) {
	p := get(r, what, fn, symbols...)
	if p != nil {
		return *p
	}
	if r.err == nil {
		r.err = fmt.Errorf("NVML cannot tell the %s: this GPU or driver does not have it", what)
	}
	return v
}

// get reads a property that a GPU need not have: nil if it does not, or if something failed before.
func get[T any](r *reader, what string, fn func() (T, nvml.Return), symbols ...string) *T {
	if r.err != nil || !r.has(symbols...) {
		return nil
	}
	v, ret := fn()
	switch {
	case ret == nvml.SUCCESS:
		return &v
	case !absent(ret):
		r.err = fmt.Errorf("NVML cannot tell the %s: %s", what, text(ret))
	}
	return nil
}

// has reports whether the library has one of the functions. go-nvml binds a function when it is
// called for the first time, and one that an old driver does not have ends the process.
func (l *library) has(symbols ...string) bool {
	for _, s := range symbols {
		known, checked := l.known[s]
		if !checked {
			known = l.Extensions().LookupSymbol(s) == nil
			l.known[s] = known
		}
		if known {
			return true
		}
	}
	return false
}

// absent reports whether a return code means that this GPU, or this driver, does not have the
// property at all, or does not show it now.
func absent(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_PERMISSION, nvml.ERROR_NO_DATA,
		nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED, nvml.ERROR_NOT_FOUND, nvml.ERROR_NOT_READY:
		return true
	}
	return false
}
