package conformance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/shimtest"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// Environment of the test binary when it runs one suite against one shim.
const (
	childShim  = "CONFORMANCE_SHIM"
	childSuite = "CONFORMANCE_SUITE"
)

// suites are those that a shim of runc's kind takes part in.
var suites = []string{"Run", "Exec", "OOM"}

// atLeast is the number of tests, subtests included, that shimtest v0.3.0 has in each suite: a
// parser that finds fewer has missed some.
var atLeast = map[string]int{"Run": 5, "Exec": 11, "OOM": 1}

func TestMain(m *testing.M) {
	// containerd's client does this where there is one.
	typeurl.Register(&specs.Process{}, "types.containerd.io", "opencontainers/runtime-spec", strconv.Itoa(specs.VersionMajor), "Process")
	if os.Getenv(childShim) != "" {
		os.Exit(m.Run())
	}
	testenv.Main(m, "containerd-shim-nvidia-v2")
}

// TestSuite is the entry of the subprocesses: one suite against one shim. Without
// a shim in the environment it has nothing to test; TestResultsAreThoseOfTheStockShim
// is what a reader runs.
func TestSuite(t *testing.T) {
	shim := os.Getenv(childShim)
	if shim == "" {
		return
	}
	cfg := shimtest.Config{ShimBinary: shim}
	switch suite := os.Getenv(childSuite); suite {
	case "Run":
		shimtest.NewRunSuite(cfg).Run(t)
	case "Exec":
		shimtest.NewExecSuite(cfg).Run(t)
	case "OOM":
		shimtest.NewOOMSuite(cfg).Run(t)
	default:
		t.Fatalf("no suite %q", suite)
	}
}

// subject is one shim under test.
type subject struct {
	name string
	// binary is what the suite starts.
	binary string
	// env is added to the suite's environment.
	env []string
	// records is where the wrapper of the GPU subject puts what the shim wrote
	// into each bundle; empty for the others.
	records string
}

// The suite is judged by the difference to the stock shim. Its own leak check
// fails for every shim, the stock one too: three of its tests end without a
// Shutdown request.
func TestResultsAreThoseOfTheStockShim(t *testing.T) {
	bin := testenv.ShimDir()
	work, err := os.MkdirTemp("", "conf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(work) })
	testbin := buildTestbin(t, work)

	stock := copyShim(t, filepath.Join(bin, "tools", "containerd-shim-runc-v2"), filepath.Join(work, "stock"))
	ours := copyShim(t, filepath.Join(bin, "containerd-shim-nvidia-v2"), filepath.Join(work, "ours"))
	config := sim.New(t, sim.Options{GPUs: 1}).ConfigPath
	subjects := []subject{
		{name: "stock", binary: stock},
		{name: "ours", binary: ours},
		gpuSubject(t, bin, work, config),
	}
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) {
			var runs []run
			for _, s := range subjects {
				runs = append(runs, runSuite(t, s, suite, testbin, filepath.Join(bin, "tools")))
			}
			compare(t, runs)
		})
	}
	records, err := filepath.Glob(filepath.Join(subjects[2].records, "*.json"))
	if err != nil || len(records) < 10 {
		t.Errorf("%d containers of the suite had a GPU (%v): the third column says nothing", len(records), err)
	}
}

// run is one suite with one subject.
type run struct {
	subject string
	// results maps a test's name to PASS, FAIL or SKIP. The suite as a whole is "(suite)".
	results map[string]string
	output  string
}

// compare asserts that every run gave what the first one gave, and logs it.
func compare(t *testing.T, runs []run) {
	t.Helper()
	set := map[string]bool{}
	for _, r := range runs {
		for name := range r.results {
			set[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		want := runs[0].results[name]
		t.Logf("%-45s %s", name, want)
		for _, r := range runs[1:] {
			if got := r.results[name]; got != want {
				t.Errorf("%s: %q with %s, %q with %s\n%s", name, got, r.subject, want, runs[0].subject, r.output)
			}
		}
	}
}

var resultLine = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): TestSuite(/\S+)? \(`)

// privateScript runs a command with a /run of its own, where runc keeps its state,
// and deletes the containers that the command left: the suite does not delete
// those of the tests that end without a Shutdown request.
const privateScript = `
mount -t tmpfs none /run || exit 125
"$@"
code=$?
for container in /run/containerd/runc/*/*/; do
	[ ! -d "$container" ] || runc --root "$(dirname "$container")" delete --force "$(basename "$container")"
done
exit $code`

// runSuite runs a suite in a process and a mount namespace of its own, and ends the
// shims that it leaves.
func runSuite(t *testing.T, s subject, suite, testbin, tools string) run {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", privateScript, "sh", self, "-test.v", "-test.count=1", "-test.timeout=3m", "-test.run=^TestSuite$")
	temp, err := os.MkdirTemp(filepath.Dir(filepath.Dir(s.binary)), "t")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append([]string{
		"PATH=" + tools + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"TMPDIR=" + temp, "SHIMTEST_TESTBIN=" + testbin, childShim + "=" + s.binary, childSuite + "=" + suite,
	}, s.env...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = 5 * time.Second
	// The os package makes all mounts of the new namespace private.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitErr := cmd.Wait()

	r := run{subject: s.name, results: map[string]string{}, output: output.String()}
	lines := bufio.NewScanner(strings.NewReader(r.output))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if m := resultLine.FindStringSubmatch(lines.Text()); m != nil {
			name := strings.TrimPrefix(m[2], "/")
			if name == "" {
				// The result of the whole is that of a check for shims that are left, which
				// fails for the stock shim too and does not see those of the GPU subject.
				continue
			}
			r.results[name] = m[1]
		}
	}
	if len(r.results) < atLeast[suite] {
		t.Errorf("%s: the suite %s gave %d results, %d at least are expected (%v):\n%s", s.name, suite, len(r.results), atLeast[suite], waitErr, r.output)
	}
	endShims(t, filepath.Dir(s.binary))
	return r
}

// endShims ends, by their ids, the processes whose program is below dir, which no
// other test uses.
func endShims(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		program, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err == nil && strings.HasPrefix(program, dir+"/") {
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				t.Error(err)
			}
		}
		unix.Close(fd)
	}
}

// buildTestbin builds the static program that the suite runs in its containers.
func buildTestbin(t *testing.T, work string) string {
	t.Helper()
	out := filepath.Join(work, "testbin")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", out, "github.com/containerd/shimtest/cmd/testbin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build shimtest's program: %v\n%s", err, msg)
	}
	return out
}

// copyShim gives a shim a path of its own, so that its processes can be told from
// those of other tests.
func copyShim(t *testing.T, from, dir string) string {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, filepath.Base(from))
	if err := os.WriteFile(to, data, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endShims(t, dir) })
	return to
}

// gpuSubject is our shim with a GPU in every container. The suite's configuration
// has no way to set a variable in its containers, so a script in the place of the
// shim adds one to config.json before `start`, and keeps the shim's record at
// `delete` as the proof that the GPU was there.
func gpuSubject(t *testing.T, bin, work, config string) subject {
	t.Helper()
	dir := filepath.Join(work, "gpu")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	shim := copyShim(t, filepath.Join(bin, "containerd-shim-nvidia-v2"), filepath.Join(dir, "shim"))
	records := filepath.Join(dir, "records")
	if err := os.Mkdir(records, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`#!/bin/sh
for action; do :; done
case $action in
start) sed -i 's/"env":\[/"env":["NVIDIA_VISIBLE_DEVICES=0",/' config.json || exit 1 ;;
delete) [ ! -e nvidia.json ] || cp nvidia.json %s/$$.json ;;
esac
exec %s "$@"
`, records, shim)
	wrapper := filepath.Join(dir, "containerd-shim-nvidia-v2")
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return subject{name: "ours, GPU", binary: wrapper, env: []string{"NVIDIA_SHIM_CONFIG=" + config}, records: records}
}
