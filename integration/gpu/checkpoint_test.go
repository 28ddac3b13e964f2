//go:build gpu

package gpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// The programs of a container are written to files, the container is removed, and a new one
// continues where they stopped.
func TestACheckpointIsRestored(t *testing.T) {
	const name = "test/checkpoint:latest"
	version, err := exec.Command(testenv.CRIU(t), "--version").CombinedOutput()
	t.Logf("%s%v", version, err)
	g := hostGPUs(t)[0]
	// Suspended, so that files and memory are of one moment.
	env := newEnv(t, suspends+"[policy]\nallow-checkpoints = true\n")
	keepCgroupOptions(t)
	testenv.RemoveFIFOs(t)
	before, _ := memoryOf(t, g)
	c := startCounting(t, env, g.Index, "512", "64")
	for range 2 {
		start := time.Now()
		if stdout, _, err := env.CtrErr("containers", "checkpoint", "--rw", "--task", c.id, name); err != nil {
			t.Fatalf("checkpoint: %v: %s\n%s", err, stdout, criuLog(env, c.id, "criu-dump.log"))
		}
		t.Logf("written in %s", time.Since(start))
		c.counts(t)
		env.Remove(t, c.id)
		if used, _ := memoryOf(t, g); used > before+16 {
			t.Errorf("%d MiB are in use without the container, %d before it was started", used, before)
		}
		start = time.Now()
		if _, _, err := env.CtrErr("containers", "restore", "--rw", "--live", c.id, name); err != nil {
			t.Fatalf("restore: %v\n%s", err, criuLog(env, c.id, "work/restore.log"))
		}
		t.Logf("restored in %s", time.Since(start))
		c.findPrograms(t, "count", 2)
		c.counts(t)
		if list, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/proc/driver/nvidia/gpus", c.pids[0])); err != nil || len(list) != 1 {
			t.Errorf("the mask has %v, %v", list, err)
		}
		env.Ctr(t, "images", "rm", name)
	}
	env.Remove(t, c.id)
}

// keepCgroupOptions puts the host's mount options of cgroup2 back: CRIU mounts the container's
// without them, which removes them from all (cgroup v2 has one superblock).
func keepCgroupOptions(t *testing.T) {
	t.Helper()
	options, err := exec.Command("findmnt", "-no", "FS-OPTIONS", "/sys/fs/cgroup").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd := exec.Command("mount", "-o", "remount,nosuid,nodev,noexec,relatime,"+strings.TrimSpace(string(options)), "/sys/fs/cgroup")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// criuLog returns the errors in a log of CRIU, and its end.
func criuLog(env *testenv.Env, id, name string) string {
	data, err := os.ReadFile(filepath.Join(env.BundleDir(id), name))
	if err != nil {
		return err.Error()
	}
	text := ""
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, "Error") || strings.Contains(line, "Warn") {
			text += line
		}
	}
	return text + string(data[max(0, len(data)-4000):])
}
