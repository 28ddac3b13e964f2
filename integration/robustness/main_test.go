package robustness

import (
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
)

func TestMain(m *testing.M) { simhost.Main(m) }
