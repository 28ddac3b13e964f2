package shim

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
)

func TestOutcomesBecomeEvents(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := &fakeTasks{}
	s, _ := serviceAround(f)
	dir := simulatedHost(t, admin)
	cfg, err := config.Find("")
	check(t, err)
	events := state.Events{Dir: cfg.Host.StateDir}
	create := func(id, dir string) error {
		_, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: id, Bundle: dir})
		return err
	}
	next := func() (kinds string, last state.Event) {
		list, _ := events.Next()
		for _, e := range list {
			kinds += e.Kind + " "
			last = e
		}
		return kinds, last
	}

	check(t, create("a", dir))
	kinds, e := next()
	if kinds != "view_built created " || !e.GPU || e.OwnSeconds <= 0 || e.Seconds < e.OwnSeconds {
		t.Errorf("a GPU: %s%+v", kinds, e)
	}
	unknown := plainBundle(t, `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=9"]}, "annotations": {"io.kubernetes.cri.sandbox-namespace": "team", "io.kubernetes.cri.sandbox-name": "pod"}}`)
	if err := create("b", unknown); err == nil {
		t.Error("created")
	}
	if kinds, e := next(); !strings.HasSuffix(kinds, "refused ") || e.Who != "team/pod" || e.Reason == "" || e.Class == "runtime" || e.Class == "" {
		t.Errorf("refused: %s%+v", kinds, e)
	}
	f.createErr = errors.New("runc create failed")
	if err := create("c", gpuBundle(t, admin)); err == nil {
		t.Error("created")
	}
	if kinds, e := next(); kinds != "refused " || e.Who != "c" || e.Class != "runtime" || e.Reason != "runc create failed" {
		t.Errorf("by runc: %s%+v", kinds, e)
	}
	f.createErr = nil
	check(t, create("d", plainBundle(t, "{}")))
	if kinds, _ := next(); kinds != "" {
		t.Errorf("without a request: %s", kinds)
	}
	// Nothing depends on them.
	name := filepath.Join(cfg.Host.StateDir, "events.jsonl")
	check(t, errors.Join(os.Remove(name), os.Mkdir(name, 0o700)))
	check(t, create("e", gpuBundle(t, admin)))
}
