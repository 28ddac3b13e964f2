package gpuinject

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
)

func TestARestoredContainerGetsWhatItHad(t *testing.T) {
	plan := func(change func(*Plan)) Plan {
		p := Plan{
			GPU: true, DriverVersion: "580.159.04", GPUs: []PlanGPU{{UUID: "GPU-1"}}, MIG: []PlanMIG{{Name: "MIG-2"}},
			Devices: []PlanDevice{{Path: "/dev/nvidia0", Major: 195}}, Proc: place.Proc{Masked: true},
		}
		change(&p)
		return p
	}
	same := func(*Plan) {}
	allowed := Container{Config: config.Default()}
	allowed.Config.Policy.AllowCheckpoints = true
	for _, test := range []struct {
		name   string
		change func(*Plan)
		want   string
	}{
		{"the same", same, ""},
		{"another index", func(p *Plan) { p.GPUs = []PlanGPU{{UUID: "GPU-1", Index: 3}} }, ""},
		{"another driver", func(p *Plan) { p.DriverVersion = "570.1" }, "of driver \"580.159.04\": this host has 570.1"},
		{"another GPU", func(p *Plan) { p.GPUs = []PlanGPU{{UUID: "GPU-3"}} }, "of a container with \"GPU-1, MIG-2\": it gets GPU-3, MIG-2 now"},
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
			err = plan(test.change).CheckRestore(allowed, dir)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	err := plan(same).CheckRestore(allowed, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "cannot be restored from a checkpoint that this shim did not make") {
		t.Errorf("without a record: %v", err)
	}
	if err := plan(same).CheckRestore(Container{Config: config.Default()}, t.TempDir()); err == nil || !strings.Contains(err.Error(), "policy.allow-checkpoints is false") {
		t.Errorf("by default: %v", err)
	}
	pod := allowed
	pod.Input.Container.Kubernetes = true
	if err := plan(same).CheckRestore(pod, t.TempDir()); err == nil || !strings.Contains(err.Error(), "in Kubernetes") {
		t.Errorf("in Kubernetes: %v", err)
	}
}

// FuzzCheckRestore uses any bytes as the record in a checkpoint, which its author can forge.
func FuzzCheckRestore(f *testing.F) {
	plan := Plan{GPU: true, DriverVersion: "580.159.04", GPUs: []PlanGPU{{UUID: "GPU-1"}}, Devices: []PlanDevice{{Path: "/dev/nvidia0", Major: 195}}}
	data, err := json.Marshal(plan)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"driver_version":"1\n\u001b[31mforged"}`))
	f.Add(bytes.Replace(data, []byte("GPU-1"), []byte(`GPU-2\r`+strings.Repeat("x", 2000)), 1))
	f.Add(bytes.Replace(data, []byte("195"), []byte("195"+strings.Repeat("0", 2000)), 1))
	dir := f.TempDir()
	allowed := Container{Config: config.Default()}
	allowed.Config.Policy.AllowCheckpoints = true
	f.Fuzz(func(t *testing.T, record []byte) {
		if err := os.WriteFile(filepath.Join(dir, RecordName), record, 0o600); err != nil {
			t.Fatal(err)
		}
		err := plan.CheckRestore(allowed, dir)
		if err == nil && !bytes.Contains(record, []byte("nvidia0")) && !bytes.Contains(record, []byte(`\`)) {
			t.Errorf("%q is accepted", record)
		}
		if err != nil && (len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\n\r\x1b\x00")) {
			t.Errorf("error %.2000q", err)
		}
	})
}
