//go:build !shimfault

package fault

import "testing"

func TestWithoutTheTagNothingIsReadFromTheEnvironment(t *testing.T) {
	t.Setenv("NVIDIA_SHIM_FAULT", "mask=error")
	if err := Point("mask"); err != nil {
		t.Error(err)
	}
}
