package gpuinject

import (
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// A container asks to be suspended when it is idle; the operator allows it, and for how long it has
// to be idle at least.
func TestWhoIsSuspendedWhenIdle(t *testing.T) {
	const suspends = config.SuspendGPU
	for _, tc := range []struct{ name, asked, least, onPause, want string }{
		{"does not ask", "", "1m", suspends, "0s"},
		{"not allowed", "30m", "", suspends, "0s"},
		{"allowed", "30m", "1m", suspends, "30m0s"},
		{"sooner than the operator allows", "30s", "15m", suspends, "15m0s"},
		{"keeps its GPUs", "30m", "1m", config.Freeze, "annotation io.containerd.nvidia.suspend-idle-after: the container keeps its GPUs when it is paused: set io.containerd.nvidia.on-pause to suspend-gpu"},
		{"no time", "soon", "1m", suspends, `annotation io.containerd.nvidia.suspend-idle-after: "soon" is not a time from 1s to 168h, such as "30m"`},
		{"too long", "169h", "", suspends, `annotation io.containerd.nvidia.suspend-idle-after: "169h" is not a time`},
		{"too short", "0s", "1m", suspends, `annotation io.containerd.nvidia.suspend-idle-after: "0s" is not a time`},
	} {
		cfg := config.Default()
		cfg.Policy.SuspendIdleAfter = tc.least
		spec := changed(newSpec("NVIDIA_VISIBLE_DEVICES=0"), annotated(annotationOnPause, tc.onPause))
		if tc.asked != "" {
			spec = changed(spec, annotated(annotationIdle, tc.asked))
		}
		c, err := ExamineSpec(spec, loading(cfg))
		got := c.IdleAfter.String()
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(strings.TrimPrefix(got, "nvidia: "), tc.want) {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
		if err != nil {
			continue
		}
		ignored := strings.Join(describeRequest(c).Ignored, "; ")
		if (ignored == annotationIdle+": policy.suspend-idle-after is not set") != (tc.name == "not allowed") {
			t.Errorf("%s: ignored %q", tc.name, ignored)
		}
	}
}
