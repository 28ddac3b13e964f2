//go:build !cgo

package nvml

import (
	"errors"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

func TestWithoutCgo(t *testing.T) {
	if _, err := Facts(config.Default().Host); !errors.Is(err, ErrNoCgo) {
		t.Errorf("error %v", err)
	}
}
