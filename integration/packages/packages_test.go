package packages

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
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
		for _, want := range []string{"containerd-shim-nvidia_1.2.3-rc.1_amd64.deb: OK", "containerd-shim-nvidia-1.2.3-rc.1-1.aarch64.rpm: OK", "nvidia-shim-node_v1.2.3-rc.1.tar: OK", "nvidia-shim-1.2.3-rc.1.tgz: OK", "\nversion: 1.2.3-rc.1\nappVersion: \"v1.2.3-rc.1\"\n", "\nv1.2.3-rc.1 (", "Version:  v1.2.3-rc.1\n", `"purl": "pkg:golang/github.com/containerd/containerd/v2@v2.`} {
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
	if names := run(t, "find", filepath.Join(a, "dist"), "-name", "*~*"); names != "" {
		t.Errorf("GitHub renames the files of a release that have a ~, and SHA256SUMS no longer has them:\n%s", names)
	}
	run(t, "sh", "-c", "cd \"$0\" && tar -xzf *_linux_arm64.tar.gz --strip-components=1", filepath.Join(a, "dist"))
	testenv.RunsWithGlibc234(t, filepath.Join(a, "dist", version.NVML))
	testArchitectures(t, filepath.Join(a, "dist"), crane, testPush(t, a, crane))
}

// testArchitectures looks into the packages and the pushed image: both architectures have the same
// files, and programs for their own machine.
func testArchitectures(t *testing.T, dist, crane, image string) {
	t.Helper()
	script := `cd "$0" && mkdir deb rpm image && deb=$(ls "$1"/*_$2.deb) && rpm=$(ls "$1"/*.$3.rpm)
dpkg-deb -W --showformat '${Architecture} ${Version}\n' "$deb"
rpm -qp --qf '%{ARCH} %{VERSION}\n' "$rpm"
"$4" --platform linux/$2 config "$5" >config
grep -o '"architecture":"[a-z0-9]*"' config
dpkg-deb -x "$deb" deb
rpm2archive - <"$rpm" >rpm.tgz
tar -xzf rpm.tgz -C rpm
"$4" --platform linux/$2 export "$5" image.tar
tar -xf image.tar -C image`
	var lists []string
	for _, a := range []struct {
		name, rpm string
		machine   elf.Machine
	}{{"amd64", "x86_64", elf.EM_X86_64}, {"arm64", "aarch64", elf.EM_AARCH64}} {
		dir := t.TempDir()
		got := run(t, "sh", "-ec", script, dir, dist, a.name, a.rpm, crane, image)
		if want := fmt.Sprintf("%s 1.2.3~rc.1\n%s 1.2.3~rc.1\n\"architecture\":%q\n", a.name, a.rpm, a.name); got != want {
			t.Errorf("deb, rpm and image are %s, want %s", got, want)
		}
		programs, err := filepath.Glob(filepath.Join(dir, "*/usr/bin/*"))
		if err != nil || len(programs) != 9 {
			t.Errorf("%s: programs %q, %v", a.name, programs, err)
		}
		for _, name := range programs {
			f, err := elf.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			if f.Machine != a.machine {
				t.Errorf("%s of %s is for %v", name, a.name, f.Machine)
			}
			_ = f.Close()
		}
		lists = append(lists, run(t, "sh", "-c", `cd "$0" && find deb rpm image -printf '%M %p\n' | sort`, dir))
	}
	if lists[0] != lists[1] {
		t.Errorf("amd64 has\n%sarm64 has\n%s", lists[0], lists[1])
	}
}

func run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return string(out)
}
