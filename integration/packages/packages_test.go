package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Two clean clones in different directories give the same bytes, and these are what is pushed.
func TestTwoClonesGiveTheSamePackages(t *testing.T) {
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "another/directory")
	run(t, "git", "clone", "-q", "--no-tags", "../..", a)
	run(t, "git", "-C", a, "tag", "v1.2.3-rc.1")
	run(t, "git", "clone", "-q", a, b)
	crane := startRegistry(t)
	var sums []string
	for _, dir := range []string{a, b} {
		run(t, "make", "-C", dir, "packages")
		out := run(t, "sh", "-c", "cd \"$0\" && sha256sum --check --strict SHA256SUMS && "+
			"tar -xzf *_linux_$1.tar.gz && */nvidia-shimctl version && */containerd-shim-nvidia-v2 -v && "+
			"tar -xzOf nvidia-shim-1.2.3-rc.1.tgz nvidia-shim/Chart.yaml && cat sbom-containerd-shim-nvidia-v2_*_linux_arm64.cdx.json", filepath.Join(dir, "dist"), runtime.GOARCH)
		for _, want := range []string{"containerd-shim-nvidia_1.2.3~rc.1_amd64.deb: OK", "containerd-shim-nvidia-1.2.3~rc.1-1.aarch64.rpm: OK", "nvidia-shim-node_v1.2.3-rc.1.tar: OK", "nvidia-shim-1.2.3-rc.1.tgz: OK", "\nversion: 1.2.3-rc.1\nappVersion: \"v1.2.3-rc.1\"\n", "\nv1.2.3-rc.1 (", "Version:  v1.2.3-rc.1\n", `"purl": "pkg:golang/github.com/containerd/containerd/v2@v2.`} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in:\n%s", want, out)
			}
		}
		text, err := os.ReadFile(filepath.Join(dir, "dist/SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, string(text))
	}
	if n := strings.Count(sums[0], "\n"); n != 14 {
		t.Errorf("%d files instead of tar.gz, deb, rpm and three SBOMs for two architectures, and an image and a chart for both:\n%s", n, sums[0])
	}
	if sums[0] != sums[1] {
		t.Errorf("one clone:\n%sthe other:\n%s", sums[0], sums[1])
	}
	run(t, "sh", "-c", "cd \"$0\" && tar -xzf *_linux_arm64.tar.gz --strip-components=1", filepath.Join(a, "dist"))
	testenv.RunsWithGlibc234(t, filepath.Join(a, "dist", runtimeclass.NVMLName))
	testPush(t, a, crane)
}

func run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return string(out)
}
