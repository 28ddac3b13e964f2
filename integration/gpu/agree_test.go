//go:build gpu

package gpu

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestInfoAgreesWithNvidiaSmi(t *testing.T) {
	env := newEnv(t, "")
	var info struct {
		DriverVersion string `json:"driver_version"`
		GPUs          []struct {
			Index, Minor     int
			UUID, PCI, Model string
		}
	}
	ctlJSON(t, env, &info, "info")
	rows := smi(t, "gpu", "index", "uuid", "pci.bus_id", "name", "driver_version")
	gpus := hostGPUs(t)
	if len(info.GPUs) != len(rows) {
		t.Fatalf("info has %d GPUs, nvidia-smi %d", len(info.GPUs), len(rows))
	}
	for i, row := range rows {
		want := fmt.Sprint(row["index"], " ", gpus[i].Minor, " ", row["uuid"], " ", pci(row["pci.bus_id"]), " ", row["name"])
		got := info.GPUs[i]
		if text := fmt.Sprint(got.Index, " ", got.Minor, " ", got.UUID, " ", got.PCI, " ", got.Model); text != want {
			t.Errorf("info says %s, nvidia-smi %s", text, want)
		}
		if row["driver_version"] != info.DriverVersion {
			t.Errorf("info says driver %s, nvidia-smi %s", info.DriverVersion, row["driver_version"])
		}
	}
	// The text for people shows the same.
	text := ctl(t, env, "info")
	for _, g := range gpus {
		if !strings.Contains(text.Output, g.UUID) || !strings.Contains(text.Output, g.Bus) {
			t.Errorf("info lacks GPU %s:\n%s", g.UUID, text.Output)
		}
	}
	t.Log(text.Output)
}

// What plan refuses is refused in a container, in the same words.
func TestPlanRefusesAsTheShimDoes(t *testing.T) {
	env := newEnv(t, "")
	for _, visible := range []string{"99", "GPU-00000000", "0,nonsense"} {
		r := ctl(t, env, "--json", "plan", "--env", "NVIDIA_VISIBLE_DEVICES="+visible)
		var p struct {
			GPU   bool
			Error string
		}
		if err := json.Unmarshal([]byte(r.Output), &p); err != nil || r.ExitCode != 1 || p.Error == "" || p.GPU {
			t.Errorf("plan of %s: exit status %d, %v: %s", visible, r.ExitCode, err, r.Output)
			continue
		}
		c := env.Run(t, script(env, visible, "true"))
		if c.ExitCode == 0 || !strings.Contains(c.Error, p.Error) {
			t.Errorf("%s: plan says %q, the container's error is %q", visible, p.Error, c.Error)
		}
		t.Log(p.Error)
	}
}
