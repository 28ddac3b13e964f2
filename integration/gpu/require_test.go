//go:build gpu

package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
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

// branches writes the alternatives of a CUDA image, which come after the condition
// proper: any brand of a data centre with a driver branch that has forward compatibility.
func branches(cuda string, list ...int) string {
	expression := "cuda>=" + cuda
	for _, branch := range list {
		for _, brand := range []string{"unknown", "grid", "tesla", "nvidia", "quadro", "quadrortx", "nvidiartx", "vapps", "vpc", "vcs", "vws", "cloudgaming"} {
			expression += fmt.Sprintf(" brand=%s,driver>=%d,driver<%d", brand, branch, branch+1)
		}
	}
	return expression
}

// less compares versions of numbers and dots.
func less(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		var x, y int
		if i < len(as) {
			x, _ = strconv.Atoi(as[i])
		}
		if i < len(bs) {
			y, _ = strconv.Atoi(bs[i])
		}
		if x != y {
			return x < y
		}
	}
	return false
}

// The conditions that CUDA images have, and some that show each property true and
// false, by what nvidia-smi says of this host.
func TestRequirementsAreCheckedAgainstThisHost(t *testing.T) {
	f := facts(t)
	env := newEnv(t, "")
	next, err := strconv.Atoi(f.branch)
	if err != nil {
		t.Fatalf("driver %s: %v", f.driver, err)
	}
	other := "tesla"
	if f.brand == other {
		other = "geforce"
	}
	image := func(cuda string, list ...int) (string, bool) {
		e := branches(cuda, list...)
		return e, !less(f.cuda, cuda) || strings.Contains(e, fmt.Sprintf("brand=%s,driver>=%s,", f.brand, f.branch))
	}
	type row struct {
		name       string
		variables  []string
		expression string // of NVIDIA_REQUIRE_CUDA
		met        bool
		says       []string // in the refusal
	}
	rows := []row{
		{name: "an old CUDA", expression: "cuda>=12.0", met: !less(f.cuda, "12.0")},
		{name: "the very CUDA of the host", expression: "cuda=" + f.cuda, met: true},
		{name: "the very driver", expression: "driver=" + f.driver, met: true},
		{name: "an old driver", expression: "driver>=500", met: !less(f.driver, "500")},
		{name: "the GPU's architecture and brand", expression: "arch=" + f.arch + ",brand=" + f.brand, met: true},
		{name: "a brand in capitals", expression: "brand=" + strings.ToUpper(f.brand), met: true},
		{name: "architecture or another brand", expression: "arch>=" + f.arch + " brand=" + other, met: true},
		{name: "two variables", variables: []string{"NVIDIA_REQUIRE_DRIVER=driver>=450", "NVIDIA_REQUIRE_ARCH=arch>=5.0"}, expression: "cuda>=11.0", met: true},
		{name: "an image for this branch by forward compatibility", expression: fmt.Sprintf("cuda>=99.0 brand=%s,driver>=%d,driver<%d", f.brand, next, next+1), met: true},
		{name: "an old image by its CUDA_VERSION", variables: []string{"CUDA_VERSION=8.0.61"}, met: true},

		{name: "a CUDA to come", expression: "cuda>=99.0", says: []string{"NVIDIA_REQUIRE_CUDA", `"cuda>=99.0"`, "CUDA " + f.cuda, "driver " + f.driver, "NVIDIA_DISABLE_REQUIRE"}},
		{name: "a driver to come", expression: "driver>=9999", says: []string{"NVIDIA_REQUIRE_CUDA", `"driver>=9999"`, "driver " + f.driver}},
		{name: "an architecture to come", expression: "arch>=99.0", says: []string{`"arch>=99.0"`, "arch " + f.arch}},
		{name: "another brand", expression: "brand=" + other, says: []string{"brand " + f.brand}},
		{name: "one of two variables", variables: []string{"NVIDIA_REQUIRE_SOMETHING=arch>=99.0"}, expression: "cuda>=11.0", says: []string{"NVIDIA_REQUIRE_SOMETHING"}},
		{name: "an image for other branches", expression: branches("99.0", 470, 535), says: []string{`"cuda>=99.0"`, "24 alternatives"}},
		{name: "an image by its CUDA_VERSION", variables: []string{"CUDA_VERSION=99.0.1"}, says: []string{"CUDA_VERSION"}},
		{name: "no sense", expression: "cuda>=twelve", says: []string{"NVIDIA_REQUIRE_CUDA", "twelve"}},

		{name: "a CUDA to come, but not checked", variables: []string{"NVIDIA_DISABLE_REQUIRE=true"}, expression: "cuda>=99.0", met: true},
		{name: "switched off in other words than true", variables: []string{"NVIDIA_DISABLE_REQUIRE=please"}, expression: "cuda>=99.0", says: []string{"CUDA " + f.cuda}},
	}
	for _, i := range []struct {
		name, cuda string
		branches   []int
	}{
		{"the image of CUDA 11.8", "11.8", []int{450, 470, 510, 515}},
		{"the image of CUDA 12.4", "12.4", []int{470, 525, 535}},
		{"the image of CUDA 12.8", "12.8", []int{470, 535, 550, 560, 565}},
		{"the image of CUDA 13.0", "13.0", []int{535, 550, 565, 570, 575}},
	} {
		e, met := image(i.cuda, i.branches...)
		rows = append(rows, row{name: i.name, expression: e, met: met, says: []string{"cuda>=" + i.cuda}})
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
				t.Fatalf("exit status %d, met: %v\n%s", c.ExitCode, r.met, c.Stderr)
			}
			if !r.met {
				for _, want := range r.says {
					if !strings.Contains(c.Stderr, want) {
						t.Errorf("the refusal lacks %q: %s", want, c.Stderr)
					}
				}
				env.AssertUnchanged(t, before)
				t.Log(strings.TrimSpace(c.Stderr))
			}
			args := []string{"--json", "plan", "--env", "NVIDIA_VISIBLE_DEVICES=0"}
			for _, v := range variables {
				args = append(args, "--env", v)
			}
			if p := ctl(t, env, args...); (p.code == 0) != r.met {
				t.Errorf("plan: exit status %d, the shim: met %v\n%s%s", p.code, r.met, p.out, p.err)
			}
		})
	}
}

// middle is the median.
func middle(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2].Round(100 * time.Microsecond)
}

// What asking NVML costs: for reading, times are not asserted.
func TestWhatTheProbeCosts(t *testing.T) {
	env := newEnv(t, "")
	var probes []time.Duration
	for range 20 {
		r := ctl(t, env, "probe", "nvml")
		if r.code != 0 {
			t.Fatalf("nvidia-shimctl probe nvml: exit status %d: %s%s", r.code, r.err, r.out)
		}
		probes = append(probes, r.took)
	}
	t.Logf("nvidia-shimctl probe nvml, 20 times: median %v, shortest %v, longest %v",
		middle(probes), slices.Min(probes), slices.Max(probes))

	took := func(n int, variables ...string) []time.Duration {
		var list []time.Duration
		for range n {
			start := time.Now()
			env.MustRun(t, script(env, "0", "true", variables...))
			list = append(list, time.Since(start))
		}
		return list
	}
	answer := filepath.Join(stateDir(env), "nvml.json")
	took(2)
	if _, err := os.Stat(answer); err == nil {
		t.Errorf("%s is there, and no container needed an answer of NVML", answer)
	}
	plain := took(10)
	first := took(1, "NVIDIA_REQUIRE_CUDA=cuda>=11.0")
	info, err := os.Stat(answer)
	if err != nil {
		t.Fatalf("the probe's answer was not kept: %v", err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		t.Errorf("%s has mode %v", answer, info.Mode())
	}
	later := took(10, "NVIDIA_REQUIRE_CUDA=cuda>=11.0")
	again, err := os.Stat(answer)
	if err != nil || !again.ModTime().Equal(info.ModTime()) {
		t.Errorf("the answer was not used again: kept at %v and at %v, %v", info.ModTime(), again.ModTime(), err)
	}
	t.Logf("whole ctr run of true: median of 10 without a requirement %v; the first with one %v; median of 10 later ones %v",
		middle(plain), middle(first), middle(later))
	if pids := ours(t, testenv.ShimDir(), "nvidia-shimctl"); len(pids) > 0 {
		t.Errorf("nvidia-shimctl still runs: %v", pids)
	}
}

// stateDir is the shim's state directory in newEnv's configuration.
func stateDir(env *testenv.Env) string {
	return filepath.Join(filepath.Dir(env.Options.ShimConfig), "state")
}

// What requirements are checked against is what nvidia-smi says.
func TestTheProbeAgreesWithNvidiaSmi(t *testing.T) {
	env := newEnv(t, "")
	f := facts(t)
	var p struct {
		Driver, CUDA string
		GPUs         []struct {
			Index, Minor                 int
			UUID, PCI, Name, Brand, Arch string
			MIG                          bool
		}
	}
	ctlJSON(t, env, &p, "probe", "nvml")
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
