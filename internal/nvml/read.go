//go:build cgo

package nvml

import (
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// reader reads properties until reading one fails for a reason other than that the GPU does not
// have it.
type reader struct {
	library nvml.Interface
	err     error
	code    nvml.Return // of err, if NVML returned one
}

// must reads a property that the answer requires.
func must[T any](r *reader, what string, fn func() (T, nvml.Return), symbols ...string) T {
	v, ok := get(r, what, fn, symbols...)
	if !ok && r.err == nil {
		r.err = fmt.Errorf("NVML does not report the %s: this GPU or driver does not support it", what)
	}
	return v
}

// get reads an optional property of a GPU. ok is false, and the value zero, if the GPU does not
// have it or an earlier read failed. One of the symbols has to be in the library: go-nvml binds a
// function when it is first called, and a function that an old driver does not have ends the
// process.
func get[T any](r *reader, what string, fn func() (T, nvml.Return), symbols ...string) (v T, ok bool) {
	has := func(symbol string) bool { return r.library.Extensions().LookupSymbol(symbol) == nil }
	if r.err != nil || !slices.ContainsFunc(symbols, has) {
		return v, false
	}
	value, ret := fn()
	switch {
	case ret == nvml.SUCCESS:
		return value, true
	case !absent(ret):
		r.code, r.err = ret, fmt.Errorf("NVML does not report the %s: %s", what, text(ret))
	}
	return v, false
}

// absent reports whether a return code means that this GPU or driver does not have the property, or
// does not show it now.
func absent(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_PERMISSION, nvml.ERROR_NO_DATA,
		nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED, nvml.ERROR_NOT_FOUND, nvml.ERROR_NOT_READY:
		return true
	}
	return false
}

// text returns NVML's text for a return code, in one line.
func text(ret nvml.Return) string { return strings.Join(strings.Fields(ret.Error()), " ") }

// handle is NVML's handle of a GPU or a MIG device, with its index.
type handle struct {
	nvml.Device
	index int
}
