//go:build gpu

package gpu

import (
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestInfoAgreesWithNvidiaSmi(t *testing.T) {
	env := newEnv(t, "")
	var info struct {
		DriverVersion string `json:"driver_version"`
		GPUs          []struct {
			Index, Minor     int
			UUID, PCI, Model string
		}
		Files driverFiles
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
	// The libraries are those that programs of the host get.
	lines := loadLines(onHost(t, "", "loads", "libcuda.so.1", "libnvidia-ml.so.1"))
	for name, line := range lines {
		file, ok := strings.CutPrefix(line, "ok ")
		if !ok {
			t.Errorf("%s does not open on the host: %s", name, line)
			continue
		}
		real, err := filepath.EvalSymlinks(file)
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.HasSuffix(real, info.DriverVersion) {
			t.Logf("the host's programs get %s, a copy without a version", real)
		} else if !slices.ContainsFunc(info.Files.all(), func(f string) bool { return path.Base(f) == path.Base(real) }) {
			t.Errorf("the host's programs get %s, which info does not list", real)
		}
	}
	// A person sees the same.
	text := ctl(t, env, "info")
	for _, g := range gpus {
		if !strings.Contains(text.out, g.UUID) || !strings.Contains(text.out, g.Bus) {
			t.Errorf("info lacks GPU %s:\n%s", g.UUID, text.out)
		}
	}
	t.Log(text.out)
}

// plan is what the tests look at in gpuinject.Plan.
type plan struct {
	GPU   bool
	Error string
	GPUs  []struct {
		Index, Minor int
		UUID, PCI    string
	}
	Devices []struct {
		Path         string
		Major, Minor uint32
	}
	Libraries, Binaries []string
	Mounts              []struct{ Destination string }
	Proc                struct {
		Masked bool
		GPUs   []string
	}
	Requirements []struct {
		Variable    string
		SatisfiedBy []string `json:"satisfied_by"`
	}
}

// What plan says of a container is what such a container has.
func TestPlanAgreesWithAContainer(t *testing.T) {
	gpus := hostGPUs(t)
	env := newGraphicsEnv(t)
	tar, err := graphicsImage()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := images.Unpack(tar, root); err != nil {
		t.Fatal(err)
	}
	plain := env.MustRun(t, testenv.RunOptions{Runtime: runtime, Image: GraphicsRef, Args: []string{"cat", "/proc/self/mountinfo"}})
	for _, c := range []struct {
		capabilities string
		visible      string
		want         []gpu
	}{
		{"compute,utility", gpus[0].Index, gpus[:1]},
		{"all", "all", gpus},
	} {
		var p plan
		variables := []string{"--env", "NVIDIA_VISIBLE_DEVICES=" + c.visible, "--env", "NVIDIA_DRIVER_CAPABILITIES=" + c.capabilities}
		ctlJSON(t, env, &p, append([]string{"plan", "--rootfs", root}, variables...)...)
		text := ctl(t, env, append([]string{"plan", "--rootfs", root}, variables...)...)
		t.Logf("%s %s:\n%s", c.visible, c.capabilities, text.out)

		out := env.MustRun(t, graphics(env, c.visible, c.capabilities, `find /dev -type c -exec stat -c '%n %t %T' {} +; echo --; `+
			`find /usr/local/nvidia -type f -name '*.so*'; echo --; ls /proc/driver/nvidia/gpus; echo --; cat /proc/self/mountinfo`))
		parts := strings.Split(out, "--\n")
		if len(parts) != 4 {
			t.Fatalf("the container says %s", out)
		}

		var want, got []string
		for _, g := range c.want {
			want = append(want, g.Index+" "+g.Minor+" "+g.UUID+" "+g.Bus)
		}
		for _, g := range p.GPUs {
			got = append(got, fmt.Sprint(g.Index, " ", g.Minor, " ", g.UUID, " ", g.PCI))
		}
		same(t, "GPUs", got, want)

		got, want = nil, nil
		for _, d := range p.Devices {
			got = append(got, fmt.Sprintf("%s %x %x", d.Path, d.Major, d.Minor))
		}
		for line := range strings.Lines(parts[0]) {
			if strings.Contains(line, "nvidia") || strings.Contains(line, "/dri/") {
				want = append(want, strings.TrimSpace(line))
			}
		}
		same(t, "devices", got, want)

		want = nil
		for line := range strings.Lines(parts[1]) {
			want = append(want, path.Base(strings.TrimSpace(line)))
		}
		same(t, "libraries", p.Libraries, want)
		same(t, "GPUs of the mask", p.Proc.GPUs, strings.Fields(parts[2]))

		got = nil
		for _, m := range p.Mounts {
			got = append(got, m.Destination)
		}
		same(t, "mounts", got, newMounts(plain, parts[3]))
	}
}

// same compares what plan says with what a container has, in any order.
func same(t *testing.T, what string, plan, container []string) {
	t.Helper()
	plan, container = slices.Compact(slices.Sorted(slices.Values(plan))), slices.Compact(slices.Sorted(slices.Values(container)))
	for _, p := range plan {
		if !slices.Contains(container, p) {
			t.Errorf("%s: plan has %q, the container does not: %q", what, p, container)
		}
	}
	for _, c := range container {
		if !slices.Contains(plan, c) {
			t.Errorf("%s: the container has %q, plan does not: %q", what, c, plan)
		}
	}
}

// newMounts are the mount points of one table that the other does not have, without
// those inside of the driver's place and of the mask.
func newMounts(before, after string) []string {
	var list []string
	points := func(table string) map[string]bool {
		m := map[string]bool{}
		for line := range strings.Lines(table) {
			if f := strings.Fields(line); len(f) > 4 {
				m[f[4]] = true
			}
		}
		return m
	}
	old := points(before)
	for p := range points(after) {
		if !old[p] && !strings.HasPrefix(p, "/usr/local/nvidia/") && !strings.HasPrefix(p, "/proc/driver/nvidia") {
			list = append(list, p)
		}
	}
	return list
}

// What plan refuses is refused in a container, in the same words.
func TestPlanRefusesAsTheShimDoes(t *testing.T) {
	env := newEnv(t, "")
	for _, visible := range []string{"99", "GPU-00000000", "0,nonsense"} {
		r := ctl(t, env, "--json", "plan", "--env", "NVIDIA_VISIBLE_DEVICES="+visible)
		var p plan
		if err := json.Unmarshal([]byte(r.out), &p); err != nil || r.code != 1 || p.Error == "" || p.GPU {
			t.Errorf("plan of %s: exit status %d, %v: %s", visible, r.code, err, r.out)
			continue
		}
		c := env.Run(t, script(env, visible, "true"))
		if c.ExitCode == 0 || !strings.Contains(c.Stderr, p.Error) {
			t.Errorf("%s: plan says %q, the container's error is %q", visible, p.Error, c.Stderr)
		}
		t.Log(p.Error)
	}
}
