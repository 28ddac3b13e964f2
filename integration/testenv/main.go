package testenv

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Tools are the names of the programs that every environment needs in ToolsDir.
var Tools = []string{"containerd", "ctr", "containerd-shim-runc-v2", "runc"}

// Main is the TestMain of a package that uses environments. It runs the tests
// when everything they need is there. Otherwise it says what is missing and how
// to get it, and fails; only with -short does it pass, still saying so.
//
// programs are further programs that must be in ShimDir, for example
// "containerd-shim-nvidia-v2" and "kubernetes/etcd".
func Main(m *testing.M, programs ...string) {
	flag.Parse()
	missing := Missing(programs...)
	if len(missing) == 0 {
		os.Exit(runInTemp(m))
	}
	verdict := "FAIL"
	if testing.Short() {
		verdict = "SKIP (-short)"
	}
	fmt.Fprintf(os.Stderr, "%s: the integration tests of this package cannot run here:\n", verdict)
	for _, what := range missing {
		fmt.Fprintf(os.Stderr, "  - %s\n", what)
	}
	if testing.Short() {
		os.Exit(0)
	}
	os.Exit(1)
}

// runInTemp runs the tests in a temporary directory, which they must leave empty.
func runInTemp(m *testing.M) int {
	remove, err := makeTemp()
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return 1
	}
	code := m.Run()
	if err := remove(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return 1
	}
	return code
}

// Missing lists, for a reader, what an environment needs and this host lacks.
func Missing(programs ...string) []string {
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root: containers are made with mounts, cgroups and mknod")
	}
	tools, err := ToolsDir()
	if err != nil {
		return append(missing, err.Error())
	}
	missing = append(missing, lacking(tools, Tools)...)
	if len(programs) > 0 {
		missing = append(missing, lacking(ShimDir(), programs)...)
	}
	if len(CgroupVersions()) == 0 {
		missing = append(missing, "a cgroup file system at "+cgroupRoot)
	}
	return missing
}

func lacking(dir string, names []string) []string {
	var missing []string
	for _, name := range names {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			missing = append(missing, fmt.Sprintf("%s: run `make build tools daemons kubernetes docker`", filepath.Join(dir, name)))
		}
	}
	return missing
}

// ModuleRoot is the directory of the repository's go.mod, found upwards from the
// working directory, which for a test is the directory of its package. Modules
// below integration/ are passed over.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the module root: %w", err)
	}
	const module = "module github.com/containerd-shim-nvidia/containerd-shim-nvidia"
	for {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil {
			for line := range strings.Lines(string(data)) {
				if strings.TrimSpace(line) == module {
					return dir, nil
				}
			}
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("find the module root: the working directory is not in the repository; set NVIDIA_SHIM_BIN")
		}
		dir = up
	}
}

// binDir is $NVIDIA_SHIM_BIN or <module root>/bin.
func binDir() (string, error) {
	if dir := os.Getenv("NVIDIA_SHIM_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	root, err := ModuleRoot()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "bin"), nil
}

// ShimDir is the directory with the project's own binaries: $NVIDIA_SHIM_BIN, or
// bin/ of the repository. It is empty when neither can be told.
func ShimDir() string {
	dir, err := binDir()
	if err != nil {
		return ""
	}
	return dir
}

// ToolsDir is the directory with containerd, ctr, the stock shim and runc:
// tools/ below the directory of the project's binaries.
func ToolsDir() (string, error) {
	dir, err := binDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "tools"), nil
}
