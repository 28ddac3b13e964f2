package ctl

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// Containers that run are explained by what the shim did, without their annotations typed by hand.
func TestPlanExplainsAContainerThatRuns(t *testing.T) {
	h := simhost.New(t, simhost.Options{Config: "[policy]\nkubernetes = \"trust-env\"\n"})
	pod := fmt.Sprintf("train-%d", os.Getpid())
	start := func(o testenv.RunOptions, env string) string {
		o.Env = []string{env}
		return h.Start(t, o)
	}
	main := start(testenv.RunOptions{Annotations: simhost.PodAnnotations("team", pod, "main")}, "NVIDIA_VISIBLE_DEVICES=1")
	sidecar := start(testenv.RunOptions{Annotations: simhost.PodAnnotations("team", pod, "sidecar")}, "A=B")
	stock := start(testenv.RunOptions{Runtime: testenv.StockRuntime}, "NVIDIA_VISIBLE_DEVICES=1")
	plan := func(args ...string) (p gpuinject.Plan) {
		t.Helper()
		if err := json.Unmarshal([]byte(h.Ctl(t, append([]string{"--json", "plan", "--state", h.State}, args...)...)), &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, args := range [][]string{{"--container", h.ID + "/" + main}, {"--pod", "team/" + pod}, {"--pod", "team/" + pod, "--container", "main"}} {
		p := plan(args...)
		if !p.GPU || len(p.GPUs) != 1 || p.GPUs[0].UUID != h.Driver.GPUs[1].UUID || p.Container.ID != main || p.Container.Name != "main" || len(p.Decisions) == 0 {
			t.Errorf("%q: %+v", args, p)
		}
	}
	for id, reason := range map[string]string{sidecar: "NVIDIA_VISIBLE_DEVICES is not set", stock: "another runtime made it"} {
		if p := plan("--container", h.ID+"/"+id); p.GPU || !strings.Contains(p.Reason, reason) || p.Container.ID != id {
			t.Errorf("%s: %+v", id, p)
		}
	}
}
