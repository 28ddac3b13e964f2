package place

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

func TestAMinorNumberBeyondTheMaskIsSaid(t *testing.T) {
	// The driver's parser accepts hexadecimal numbers, which JSON does not have.
	const text = `{
    "profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", %#x]}],
    "rules": [{"pattern": [], "profile": "_container_"}]
}
`
	for minor, want := range map[int]bool{0: true, 31: true, 32: true, 63: true, 64: false, 255: false} {
		var log verdict.Log
		g := Given{Request: request.Request{Capabilities: []string{config.Graphics}}, GPUs: []device.GPU{{Minor: minor}}}
		data := profile(g, &log)
		if has := data != nil; has != want || has == strings.Contains(strings.Join(log.Notes, ""), "EGL may list GPUs") {
			t.Errorf("minor %d: profile is %v, notes %q", minor, has, log.Notes)
		}
		if want && string(data) != fmt.Sprintf(text, uint64(1)<<minor) {
			t.Errorf("minor %d: %s", minor, data)
		}
	}
}
