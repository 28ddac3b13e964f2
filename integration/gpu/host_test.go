//go:build gpu

package gpu

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// smi queries the host's nvidia-smi: what is "gpu" or "compute-apps", and a row is keyed by field.
// The value of a property that a GPU does not have is "[N/A]" or similar.
func smi(t testing.TB, what string, fields ...string) []map[string]string {
	t.Helper()
	out, err := exec.Command("nvidia-smi", "--query-"+what+"="+strings.Join(fields, ","), "--format=csv,noheader,nounits").CombinedOutput()
	if err != nil {
		t.Fatalf("nvidia-smi --query-%s=%s on the host: %v: %s", what, strings.Join(fields, ","), err, out)
	}
	r := csv.NewReader(bytes.NewReader(out))
	r.TrimLeadingSpace = true
	records, err := r.ReadAll()
	if err != nil {
		t.Fatalf("nvidia-smi's table: %v\n%s", err, out)
	}
	var rows []map[string]string
	for _, record := range records {
		row := map[string]string{}
		for i, f := range fields {
			row[f] = record[i]
		}
		rows = append(rows, row)
	}
	return rows
}

// smiText is what pattern's first group matches in nvidia-smi's output for the host.
func smiText(t testing.TB, pattern string, args ...string) string {
	t.Helper()
	out, err := exec.Command("nvidia-smi", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nvidia-smi %q on the host: %v: %s", args, err, out)
	}
	m := regexp.MustCompile(pattern).FindSubmatch(out)
	if m == nil {
		t.Fatalf("nvidia-smi %q on the host says nothing like %s:\n%s", args, pattern, out)
	}
	return string(m[1])
}

// ctl runs nvidia-shimctl with the configuration of the environment's shims.
func ctl(t testing.TB, env *testenv.Env, args ...string) testenv.Result {
	t.Helper()
	program := filepath.Join(testenv.ShimDir(), "nvidia-shimctl")
	r, err := testenv.Output(time.Minute, exec.Command(program, append([]string{"--config", env.Options.ShimConfig}, args...)...))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ctlJSON is ctl with --json, for a command that has to succeed.
func ctlJSON(t testing.TB, env *testenv.Env, to any, args ...string) {
	t.Helper()
	r := ctl(t, env, append([]string{"--json"}, args...)...)
	if r.ExitCode != 0 {
		t.Fatalf("nvidia-shimctl --json %q: exit status %d: %s%s", args, r.ExitCode, r.Error, r.Output)
	}
	if err := json.Unmarshal([]byte(r.Output), to); err != nil {
		t.Fatalf("nvidia-shimctl --json %q: %v\n%s", args, err, r.Output)
	}
}

// pci writes nvidia-smi's PCI address, 00000000:00:06.0, as procfs does.
func pci(s string) string {
	domain, rest, _ := strings.Cut(strings.ToLower(s), ":")
	for len(domain) > 4 && domain[0] == '0' {
		domain = domain[1:]
	}
	return domain + ":" + rest
}

// listedGPUs are the UUIDs of the lines "device …" that the programs print; a device
// without one that says where it sits is the host's GPU there.
func listedGPUs(out string, gpus []gpu) []string {
	var list []string
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "device ") {
			continue
		}
		id := "unknown: " + strings.TrimSpace(line)
		if m := regexp.MustCompile(`GPU-[0-9a-f-]{36}`).FindString(line); m != "" {
			id = m
		} else if m := regexp.MustCompile(` pci (\S+)`).FindStringSubmatch(line); m != nil {
			for _, g := range gpus {
				if g.Bus == m[1] {
					id = g.UUID
				}
			}
		}
		list = append(list, id)
	}
	slices.Sort(list)
	return list
}

// uuids are sorted, for comparison with listedGPUs.
func uuids(gpus []gpu) []string {
	var list []string
	for _, g := range gpus {
		list = append(list, g.UUID)
	}
	slices.Sort(list)
	return list
}

// loadersOnHost gives the graphics image's loaders in a directory of their own, so
// that a program uses them outside of a container with the host's C library.
func loadersOnHost(t testing.TB) string {
	t.Helper()
	tar, err := graphicsImage()
	if err != nil {
		t.Fatal(err)
	}
	root, dir := t.TempDir(), t.TempDir()
	if err := images.Unpack(tar, root); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(slices.Clone(loaderLibraries), "libxcb.so.1", "libXau.so.6", "libXdmcp.so.6", "libbsd.so.0", "libmd.so.0") {
		from := filepath.Join(root, images.LibraryPath(name))
		if _, err := os.Stat(from); err != nil {
			continue // libbsd and libmd are Debian's own needs
		}
		if err := os.Symlink(from, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// onHost runs one of Programs on the host, with the loaders and NVIDIA's own ICD and
// vendor files wherever this host has them.
func onHost(t testing.TB, loaders, name string, args ...string) string {
	t.Helper()
	dir, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, name), args...)
	vendors := t.TempDir()
	if err := os.WriteFile(filepath.Join(vendors, "nvidia.icd"), []byte("libnvidia-opencl.so.1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if has := os.Getenv("LD_LIBRARY_PATH"); has != "" && loaders != "" {
		loaders += ":" + has
	}
	cmd.Env = append(os.Environ(), "OCL_ICD_VENDORS="+vendors)
	if loaders != "" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+loaders)
	}
	for variable, file := range map[string]string{"VK_ICD_FILENAMES": "vulkan/icd.d/nvidia_icd*.json", "__EGL_VENDOR_LIBRARY_FILENAMES": "glvnd/egl_vendor.d/10_nvidia.json"} {
		for _, place := range []string{"/etc/", "/usr/share/", "/usr/local/share/", "/usr/local/nvidia/share/"} {
			if found, _ := filepath.Glob(place + file); len(found) > 0 {
				cmd.Env = append(cmd.Env, variable+"="+found[0])
				break
			}
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out) + err.Error() + "\n"
	}
	return string(out)
}
