//go:build gpu

package gpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// hostFacts are what requirements are about, as nvidia-smi says it of the host and of
// its first GPU.
type hostFacts struct{ cuda, driver, branch, arch, brand string }

func facts(t testing.TB) hostFacts {
	t.Helper()
	row := smi(t, "gpu", "driver_version", "compute_cap")[0]
	f := hostFacts{
		cuda:   smiText(t, `CUDA (?:UMD )?Version\s*:\s*([0-9.]+)`),
		driver: row["driver_version"], arch: row["compute_cap"],
		// "NVIDIA RTX" is "nvidiartx" in a requirement.
		brand: strings.ReplaceAll(strings.ToLower(strings.TrimSpace(smiText(t, `Product Brand\s*:\s*(.*)`, "-q", "-i", "0"))), " ", ""),
	}
	f.branch, _, _ = strings.Cut(f.driver, ".")
	t.Logf("nvidia-smi says CUDA %s, driver %s, arch %s, brand %s", f.cuda, f.driver, f.arch, f.brand)
	return f
}

// The conditions that CUDA images have, and some that show each property true and
// false, by what nvidia-smi says of this host.
func TestRequirementsAreCheckedAgainstThisHost(t *testing.T) {
	f := facts(t)
	env := newEnv(t, "")
	branch, err := strconv.Atoi(f.branch)
	if err != nil {
		t.Fatalf("driver %s: %v", f.driver, err)
	}
	other := "tesla"
	if f.brand == other {
		other = "geforce"
	}
	type row struct {
		name       string
		variables  []string
		expression string // of NVIDIA_REQUIRE_CUDA
		met        bool
		says       []string // in the refusal
	}
	rows := []row{
		{name: "the host's own CUDA", expression: "cuda=" + f.cuda, met: true},
		{name: "the host's own driver", expression: "driver=" + f.driver, met: true},
		{name: "the GPU's architecture and brand", expression: "arch=" + f.arch + ",brand=" + f.brand, met: true},
		{name: "an image for this branch by forward compatibility", expression: fmt.Sprintf("cuda>=99.0 brand=%s,driver>=%d,driver<%d", f.brand, branch, branch+1), met: true},
		{name: "a future CUDA", expression: "cuda>=99.0", says: []string{"NVIDIA_REQUIRE_CUDA", `"cuda>=99.0"`, "CUDA " + f.cuda, "driver " + f.driver, "NVIDIA_DISABLE_REQUIRE"}},
		{name: "a future architecture", expression: "arch>=99.0", says: []string{`"arch>=99.0"`, "arch " + f.arch}},
		{name: "another brand", expression: "brand=" + other, says: []string{"brand " + f.brand}},
		{name: "a future CUDA, but not checked", variables: []string{"NVIDIA_DISABLE_REQUIRE=true"}, expression: "cuda>=99.0", met: true},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			variables := r.variables
			if r.expression != "" {
				variables = append(slices.Clone(variables), "NVIDIA_REQUIRE_CUDA="+r.expression)
			}
			before := env.Snapshot(t)
			c := env.Run(t, script(env, "0", "nvidia-smi -L", variables...))
			if r.met != (c.ExitCode == 0) {
				t.Fatalf("exit status %d, met: %v\n%s", c.ExitCode, r.met, c.Error)
			}
			if !r.met {
				for _, want := range r.says {
					if !strings.Contains(c.Error, want) {
						t.Errorf("the refusal lacks %q: %s", want, c.Error)
					}
				}
				before.AssertUnchanged(t)
				t.Log(strings.TrimSpace(c.Error))
			}
			args := []string{"--json", "plan", "--env", "NVIDIA_VISIBLE_DEVICES=0"}
			for _, v := range variables {
				args = append(args, "--env", v)
			}
			if p := ctl(t, env, args...); (p.ExitCode == 0) != r.met {
				t.Errorf("plan: exit status %d, the shim: met %v\n%s%s", p.ExitCode, r.met, p.Output, p.Error)
			}
		})
	}
}

// What requirements are checked against is what nvidia-smi says.
func TestTheProbeAgreesWithNvidiaSmi(t *testing.T) {
	env := newEnv(t, "")
	f := facts(t)
	var answers struct {
		Facts struct {
			Driver, CUDA string
			GPUs         []struct {
				Index, Minor                 int
				UUID, PCI, Name, Brand, Arch string
				MIG                          bool
			}
		}
	}
	ctlJSON(t, env, &answers, "probe")
	p := answers.Facts
	if p.Driver != f.driver || p.CUDA != f.cuda {
		t.Errorf("the probe says driver %s and CUDA %s", p.Driver, p.CUDA)
	}
	rows := smi(t, "gpu", "index", "uuid", "pci.bus_id", "name", "compute_cap", "mig.mode.current")
	gpus := hostGPUs(t)
	if len(p.GPUs) != len(rows) {
		t.Fatalf("the probe has %d GPUs, nvidia-smi %d", len(p.GPUs), len(rows))
	}
	for i, row := range rows {
		want := fmt.Sprint(row["index"], " ", gpus[i].Minor, " ", row["uuid"], " ", pci(row["pci.bus_id"]), " ", row["name"], " ", row["compute_cap"], " ", row["mig.mode.current"] == "Enabled")
		g := p.GPUs[i]
		if got := fmt.Sprint(g.Index, " ", g.Minor, " ", g.UUID, " ", g.PCI, " ", g.Name, " ", g.Arch, " ", g.MIG); got != want {
			t.Errorf("the probe says %s, nvidia-smi %s", got, want)
		}
		if i == 0 && g.Brand != f.brand {
			t.Errorf("the probe says brand %s, nvidia-smi %s", g.Brand, f.brand)
		}
	}
}
