package ctl

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// A support bundle has the records of running containers, without their environment.
func TestABundleHasTheRecordsOfContainersThatRun(t *testing.T) {
	h := simhost.New(t, simhost.Options{})
	id := h.Start(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=2", "NVIDIA_API_KEY=hidden-value"}})
	name := filepath.Join(h.Dir, "report.tar.gz")
	h.Ctl(t, "bundle", "--output", name)
	text, err := exec.Command("tar", "-xzOf", name).Output()
	if err != nil || strings.Contains(string(text), "hidden-value") {
		t.Errorf("%v, %d bytes", err, len(text))
	}
	record, err := exec.Command("tar", "-xzOf", name, "nvidia-shim/containers/"+h.ID+"/"+id+".json").Output()
	if err != nil {
		t.Fatal(err)
	}
	simhost.Want(t, string(record), h.Driver.GPUs[2].UUID, `NVIDIA_VISIBLE_DEVICES=\"2\"`)
}

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
		if err := json.Unmarshal([]byte(h.Ctl(t, append([]string{"--json", "plan"}, args...)...)), &p); err != nil {
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
