//go:build gpu

package gpu

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

const runtime = "io.containerd.nvidia.v2"

func script(env *testenv.Env, visible, text string, more ...string) testenv.RunOptions {
	return testenv.RunOptions{
		Runtime: runtime, Image: imageRef,
		Env: append([]string{"NVIDIA_VISIBLE_DEVICES=" + visible}, more...), Args: []string{"sh", "-c", text},
	}
}

// The README's first command on a host with GPUs.
func TestNvidiaSmiListsExactlyTheGrantedGPU(t *testing.T) {
	gpus := hostGPUs(t)
	env := newEnv(t, "")
	all := ""
	for _, g := range gpus {
		all += g.Line + "\n"
		for _, id := range []string{g.Index, g.UUID, g.UUID[:len("GPU-")+8], g.Bus, "0000" + g.Bus} {
			out := env.MustRun(t, script(env, id, "nvidia-smi -L"))
			// Inside, the GPU is number 0 of those that are visible.
			want := regexp.MustCompile(`^GPU \d+`).ReplaceAllString(g.Line, "GPU 0")
			if strings.TrimSpace(out) != want {
				t.Errorf("NVIDIA_VISIBLE_DEVICES=%s: got %q, want %q", id, out, want)
			}
		}
	}
	if out := env.MustRun(t, script(env, "all", "nvidia-smi -L")); out != all {
		t.Errorf("all: got %q, want %q", out, all)
	}
	if r := env.Run(t, script(env, "none", "nvidia-smi -L")); !strings.Contains(r.Output, "No devices found") {
		t.Errorf("none: %+v", r)
	}
	t.Logf("%d GPUs, host list:\n%s", len(gpus), all)
}

func TestCUDAKernelRunsOnTheGrantedGPUAndNoOther(t *testing.T) {
	gpus := hostGPUs(t)
	env := newEnv(t, "")
	for _, g := range gpus {
		out := env.MustRun(t, script(env, g.Index, "vectoradd"))
		if !strings.HasPrefix(out, "count 1\n") || !strings.Contains(out, g.UUID) || !strings.Contains(out, " ok\n") {
			t.Errorf("GPU %s: %s", g.Index, out)
		}
		t.Logf("GPU %s: %s", g.Index, out)
	}
	out := env.MustRun(t, script(env, "all", "vectoradd"))
	if !strings.HasPrefix(out, fmt.Sprintf("count %d\n", len(gpus))) || strings.Count(out, " ok\n") != len(gpus) {
		t.Errorf("all: %s", out)
	}
	if len(gpus) > 2 {
		out := env.MustRun(t, script(env, "2,0", "vectoradd; nvidia-smi -L"))
		if !strings.HasPrefix(out, "count 2\n") || !strings.Contains(out, gpus[0].UUID) || !strings.Contains(out, gpus[2].UUID) || strings.Contains(out, gpus[1].UUID) {
			t.Errorf("two GPUs: %s", out)
		}
	}
	// By the linker's cache and by path, not by an environment variable.
	out = env.MustRun(t, script(env, "0", "/sbin/ldconfig -p | grep libcuda.so.1; ls -l /usr/lib/x86_64-linux-gnu/libcuda.so.1; ldconfig; vectoradd"))
	if !strings.Contains(out, "/usr/local/nvidia/lib64/libcuda.so.1") || !strings.Contains(out, " ok\n") {
		t.Errorf("linker: %s", out)
	}
}

func TestT33AnotherGPUCannotBeOpened(t *testing.T) {
	gpus := hostGPUs(t)
	if len(gpus) < 2 {
		t.Log("ONE GPU ONLY on this host: the node of a GPU that is not there is tried instead")
	}
	env := newEnv(t, "")
	for k, g := range gpus {
		text := `for m in 0 1 2 3 4 5 6 7; do rm -f /tmp/n; mknod /tmp/n c 195 $m; if (exec 3<>/tmp/n) 2>/tmp/err; then echo "$m open"; else echo "$m $(cat /tmp/err)"; fi; done; ls /dev`
		out := env.MustRun(t, script(env, g.Index, text))
		for m := range 8 {
			line := regexp.MustCompile(fmt.Sprintf(`(?m)^%d (.*)$`, m)).FindStringSubmatch(out)
			if line == nil {
				t.Fatalf("GPU %d: %s", k, out)
			}
			if own := fmt.Sprint(m) == g.Minor; own != (line[1] == "open") || !own && !strings.Contains(line[1], "Operation not permitted") {
				t.Errorf("container with minor %s, node %d: %s", g.Minor, m, line[1])
			}
		}
		for _, other := range gpus {
			if other.Minor != g.Minor && regexp.MustCompile(`(?m)^nvidia`+other.Minor+`$`).MatchString(out) {
				t.Errorf("container with minor %s has a node of %s:\n%s", g.Minor, other.Minor, out)
			}
		}
	}
}

func devNvidia(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{"/dev", "/dev/nvidia-caps"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "nvidia") {
				info, err := e.Info()
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintln(&b, dir, e.Name(), info.Mode())
			}
		}
	}
	return b.String()
}

func TestT57T59TheMaskShowsOnlyTheGrantedGPUAndNoNodeAppears(t *testing.T) {
	gpus := hostGPUs(t)
	env := newEnv(t, "")
	hostNodes := devNvidia(t)
	g := gpus[len(gpus)-1]
	out := env.MustRun(t, script(env, g.UUID, `ls /dev | grep nvidia; echo --; nvidia-smi >/dev/null; vectoradd >/dev/null; nvidia-smi -L > /dev/null; ls /dev | grep nvidia; echo --; `+
		`find /proc/driver -type f; grep ModifyDeviceFiles /proc/driver/nvidia/params; `+
		`(echo 1 > /proc/driver/nvidia/params) 2>&1; (echo x > /proc/driver/nvidia/registry) 2>&1; true`))
	parts := strings.Split(out, "--\n")
	if len(parts) != 3 || parts[0] != parts[1] {
		t.Errorf("nodes before and after use differ:\n%s", out)
	}
	want := "nvidia-uvm\nnvidia-uvm-tools\nnvidia" + g.Minor + "\nnvidiactl\n"
	if parts[0] != want && parts[0] != "nvidia"+g.Minor+"\nnvidia-uvm\nnvidia-uvm-tools\nnvidiactl\n" {
		t.Errorf("nodes are %q, want %q", parts[0], want)
	}
	for _, other := range gpus {
		if shown := strings.Contains(parts[2], "gpus/"+other.Bus+"/information"); shown != (other.UUID == g.UUID) {
			t.Errorf("mask shows %s: %v\n%s", other.Bus, shown, parts[2])
		}
	}
	if strings.Contains(parts[2], "/proc/driver/nvidia-") {
		t.Errorf("directories of the driver's other modules:\n%s", parts[2])
	}
	if !strings.Contains(parts[2], "ModifyDeviceFiles: 0") || strings.Count(parts[2], "Read-only file system") != 2 {
		t.Errorf("mask:\n%s", parts[2])
	}
	if after := devNvidia(t); after != hostNodes {
		t.Errorf("the host's nodes changed from\n%sto\n%s", hostNodes, after)
	}
	if data, err := os.ReadFile("/proc/driver/nvidia/params"); err != nil || !strings.Contains(string(data), "ModifyDeviceFiles: ") {
		t.Errorf("the host's params: %s %v", data, err)
	}
	t.Log(out)
}

// A GPU's registers must be out of reach by sysfs as well: sysfs shows every
// PCI device, and root of a container may open what its mode allows.
func TestT58RegistersOfAnotherGPUCannotBeMapped(t *testing.T) {
	gpus := hostGPUs(t)
	env := newEnv(t, "")
	for _, g := range gpus {
		out := env.MustRun(t, script(env, g.Index, `for d in /sys/bus/pci/devices/*; do [ "$(cat $d/vendor)" = 0x10de ] && mapbar $d/resource0 $d/resource1 $d/resource3; done; true`))
		t.Logf("container with %s:\n%s", g.Bus, out)
		for line := range strings.Lines(out) {
			if strings.Contains(line, "mapped") && !strings.Contains(line, g.Bus) {
				t.Errorf("container with %s: %s", g.Bus, line)
			}
		}
	}
}

// A container with one MIG device cannot open the capability nodes of another.
func TestT60ASiblingMIGDevice(t *testing.T) {
	list, err := exec.Command("nvidia-smi", "-L").Output()
	if err != nil {
		t.Fatal(err)
	}
	uuids := regexp.MustCompile(`MIG-[0-9a-f-]{36}`).FindAllString(string(list), -1)
	if len(uuids) < 2 {
		t.Skipf("NOT TESTED: T60 needs two MIG devices, this host has %d", len(uuids))
	}
	table, err := os.ReadFile("/proc/driver/nvidia-caps/mig-minors")
	if err != nil {
		t.Fatal(err)
	}
	var minors []string
	for _, m := range regexp.MustCompile(`(?m)^gpu\d+/gi\d+/\S+ (\d+)$`).FindAllStringSubmatch(string(table), -1) {
		if _, err := os.Stat("/dev/nvidia-caps/nvidia-cap" + m[1]); err == nil {
			minors = append(minors, m[1])
		}
	}
	var st unix.Stat_t
	if err := unix.Stat("/dev/nvidia-caps/nvidia-cap"+minors[0], &st); err != nil {
		t.Fatal(err)
	}
	env := newEnv(t, "")
	for _, uuid := range uuids {
		text := fmt.Sprintf(`nvidia-smi -L; echo --; for m in %s; do rm -f /tmp/n; mknod /tmp/n c %d $m; (exec 3</tmp/n) 2>/dev/null && echo $m; done; ls /dev/nvidia-caps | sort`, strings.Join(minors, " "), unix.Major(uint64(st.Rdev)))
		listed, opened, _ := strings.Cut(env.MustRun(t, script(env, uuid, text)), "--\n")
		if got := regexp.MustCompile(`MIG-[0-9a-f-]{36}`).FindAllString(listed, -1); !slices.Equal(got, []string{uuid}) {
			t.Errorf("a container with %s lists %q", uuid, got)
		}
		// The GPU instance's node and the compute instance's.
		if numbers := regexp.MustCompile(`(?m)^\d+$`).FindAllString(opened, -1); len(numbers) != 2 {
			t.Errorf("a container with %s opens the capability nodes %q", uuid, numbers)
		}
	}
}

func TestCapabilitiesDecideWhatIsThere(t *testing.T) {
	env := newEnv(t, "")
	list := "find /usr/local/nvidia -type f | grep -o '[^/]*$'; ls /dev | grep nvidia"
	utility := env.MustRun(t, script(env, "0", list, "NVIDIA_DRIVER_CAPABILITIES=utility"))
	if strings.Contains(utility, "libcuda.so") || strings.Contains(utility, "nvidia-uvm") || !strings.Contains(utility, "libnvidia-ml.so") {
		t.Errorf("utility:\n%s", utility)
	}
	all := env.MustRun(t, script(env, "0", list+"; nvidia-smi -L; vectoradd", "NVIDIA_DRIVER_CAPABILITIES=all"))
	for _, want := range []string{"libcuda.so", "libnvidia-glcore.so", "libnvcuvid.so", "nvidia-uvm", " ok\n"} {
		if !strings.Contains(all, want) {
			t.Errorf("all lacks %s:\n%s", want, all)
		}
	}
	if strings.Contains(all, "nvidia-modprobe") {
		t.Error("nvidia-modprobe was injected")
	}
	t.Logf("all:\n%s", all)
}

func TestAnUnprivilegedUserCanUseTheGPU(t *testing.T) {
	env := newEnv(t, "")
	o := script(env, "0", "id -u; nvidia-smi -L; vectoradd")
	o.User = "1000:1000"
	out := env.MustRun(t, o)
	if !strings.HasPrefix(out, "1000\n") || !strings.Contains(out, " ok\n") {
		t.Error(out)
	}
}

func Test64ContainersAtOnceLeaveNothing(t *testing.T) {
	gpus := hostGPUs(t)
	env := newEnv(t, "")
	env.MustRun(t, script(env, "all", "vectoradd")) // makes the view, which stays
	before := env.Snapshot(t)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			g := gpus[i%len(gpus)]
			r, err := env.TryRun(t, script(env, g.Index, "nvidia-smi -L; vectoradd"))
			if err != nil || r.ExitCode != 0 || !strings.Contains(r.Output, g.UUID) || !strings.Contains(r.Output, "count 1\n") {
				t.Errorf("container %d with GPU %s: %+v %v", i, g.Index, r, err)
			}
		}()
	}
	wg.Wait()
	before.AssertUnchanged(t)
}

func TestErrorsNameWhatTheHostHas(t *testing.T) {
	gpus := hostGPUs(t)
	env := newEnv(t, "")
	r, err := env.TryRun(t, script(env, "99", "true"))
	text := fmt.Sprint(r.Error, err)
	if r.ExitCode == 0 || !strings.Contains(text, `"99"`) || !strings.Contains(text, gpus[0].UUID) {
		t.Errorf("%d %s", r.ExitCode, text)
	}
	t.Log(text)
}
