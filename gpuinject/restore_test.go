package gpuinject

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestARestoredContainerGetsWhatItHad(t *testing.T) {
	plan := func(change func(*Plan)) Plan {
		p := Plan{
			GPU: true, DriverVersion: "580.159.04", GPUs: []PlanGPU{{UUID: "GPU-1"}}, MIG: []PlanMIG{{Name: "MIG-2"}},
			Devices: []PlanDevice{{Path: "/dev/nvidia0", Major: 195}}, Proc: PlanProc{Masked: true},
		}
		change(&p)
		return p
	}
	same := func(*Plan) {}
	for _, test := range []struct {
		name   string
		change func(*Plan)
		want   string
	}{
		{"the same", same, ""},
		{"another index", func(p *Plan) { p.GPUs = []PlanGPU{{UUID: "GPU-1", Index: 3}} }, ""},
		{"another driver", func(p *Plan) { p.DriverVersion = "570.1" }, "of driver 580.159.04: this host has 570.1"},
		{"another GPU", func(p *Plan) { p.GPUs = []PlanGPU{{UUID: "GPU-3"}} }, "of a container with GPU-1, MIG-2: it gets GPU-3, MIG-2 now"},
		{"fewer GPUs", func(p *Plan) { p.MIG = nil }, "it gets GPU-1 now"},
		{"another node", func(p *Plan) { p.Devices = nil }, "other device nodes"},
		{"no mask", func(p *Plan) { p.Proc.Masked = false }, "privileges"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			data, err := json.Marshal(plan(same))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, RecordName), data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			err = plan(test.change).CheckRestore(Container{}, dir)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	err := plan(same).CheckRestore(Container{}, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "cannot be restored from a checkpoint that this shim did not make") {
		t.Errorf("without a record: %v", err)
	}
	var pod Container
	pod.Input.Container.Kubernetes = true
	if err := plan(same).CheckRestore(pod, t.TempDir()); err == nil || !strings.Contains(err.Error(), "in Kubernetes") {
		t.Errorf("in Kubernetes: %v", err)
	}
}
