package attacks

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

const (
	// maxTime is how much processor time the shim may use for a container. Unlike the clock's time,
	// it does not grow with what else the machine does.
	maxTime = time.Second
	// maxPeak is how much memory the shim may need for a container beyond what the stock shim needs
	// for one without GPUs, in KiB.
	maxPeak = 64 << 10
	// maxViews is how many views of one driver a host may have.
	maxViews = 32
)

// marker is a file of the host's canary directory that no container may see.
const marker = "canary-of-the-host"

// host is a host with a directory that attacks aim at. Its containers belong to one pod, whose shim
// outlives each attack.
type host struct {
	*simhost.Host
	canary  string
	mounts  string // containerd's mount table before the first container
	tree    string // what the hostile images are made of
	pod     string // the container that keeps the pod's shim alive
	shim    int    // the process of the pod's shim
	stock   int    // what the stock shim needed at most, in KiB
	maxPeak int
}

// inPod is the annotation by which one shim serves several containers.
const inPod = "io.containerd.runc.v2.group=pod"

func newHost(t *testing.T, o simhost.Options) *host {
	t.Helper()
	h := &host{Host: simhost.New(t, o), maxPeak: maxPeak}
	h.canary, h.mounts = filepath.Join(h.Dir, "canary"), h.MountTable(t)
	if err := os.Mkdir(h.canary, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := images.Populate(h.canary, []images.File{
		images.Text(marker, 0o644, "secret of the host"),
		images.Text("sub/file", 0o600, "another"),
		images.FromHost("libatk.so.1.0", 0o755, "/bin/busybox"),
	}); err != nil {
		t.Fatal(err)
	}
	h.stock = h.stockPeak(t)
	h.pod = h.NewID()
	h.startPod(t)
	t.Cleanup(func() { h.Gone(t, h.pod) })
	return h
}

// stockPeak returns how much memory the stock shim of a container without GPUs needed at most, in
// KiB.
func (h *host) stockPeak(t testing.TB) int {
	t.Helper()
	id := h.NewID()
	h.Host.Run(t, testenv.RunOptions{ID: id, Runtime: testenv.StockRuntime, Args: []string{"/bin/sleep", "1000000"}, Detach: true})
	defer h.Gone(t, id)
	shims := h.ShimPIDs(id)
	if len(shims) != 1 {
		t.Fatalf("stock shims: %v", shims)
	}
	return memory(t, shims[0], "VmHWM")
}

// startPod starts the container that keeps the pod's shim alive.
func (h *host) startPod(t testing.TB) {
	t.Helper()
	h.Host.Run(t, testenv.RunOptions{ID: h.pod, Annotations: []string{inPod}, Args: []string{"/bin/sleep", "1000000"}, Detach: true})
	shims := h.ShimPIDs(h.pod)
	if len(shims) != 1 {
		t.Fatalf("shims of the pod: %v", shims)
	}
	h.shim = shims[0]
	// The first GPU container makes the shim build the view and open what it keeps.
	h.Run(t, testenv.RunOptions{Env: []string{one, everything}, Args: []string{"/bin/true"}})
}

// Run runs a container of the pod.
func (h *host) Run(t testing.TB, o testenv.RunOptions) testenv.Result {
	t.Helper()
	o.Annotations = append(slices.Clone(o.Annotations), inPod)
	return h.Host.Run(t, o)
}

// RunSpec runs a container of the pod with exactly this OCI configuration.
func (h *host) RunSpec(t testing.TB, spec map[string]any, flags ...string) testenv.Result {
	t.Helper()
	key, value, _ := strings.Cut(inPod, "=")
	if spec["annotations"] == nil {
		spec["annotations"] = map[string]any{}
	}
	spec["annotations"].(map[string]any)[key] = value
	return h.Host.RunSpec(t, spec, flags...)
}

// aim replaces CANARY by the canary's path without its first slash.
func (h *host) aim(files []images.File) []images.File {
	files = slices.Clone(files)
	replace := func(s string) string { return strings.ReplaceAll(s, "CANARY", strings.TrimPrefix(h.canary, "/")) }
	for i := range files {
		files[i].Target = replace(files[i].Target)
		files[i].Data = []byte(replace(string(files[i].Data)))
	}
	return files
}

// attempt runs one hostile container under the oracle: it may start or be refused in one line, with
// little time and memory, it sees nothing of the host but the volumes, and the machine is as before.
func (h *host) attempt(t *testing.T, o testenv.RunOptions, volumes ...string) (r testenv.Result, ran bool) {
	t.Helper()
	h.unharmed(t, func() {
		h.quickly(t, func() { r = h.Run(t, o) })
		if ran = clean(t, r); ran {
			h.noHostDirectory(t, r.Output, volumes...)
		}
	})
	return r, ran
}

// quickly fails the test if the shim needs much processor time for one container.
func (h *host) quickly(t *testing.T, container func()) {
	t.Helper()
	before := h.processorTime(t)
	container()
	took := h.processorTime(t) - before
	t.Logf("the shim used %v", took)
	if took > maxTime {
		t.Errorf("it used more than %v", maxTime)
	}
}

// unharmed is the oracle. It runs an attack, whose containers may have been refused, and fails the
// test if the machine is not as before, or if the shim needed too much memory.
func (h *host) unharmed(t *testing.T, attack func()) {
	t.Helper()
	machine := h.Snapshot(t, h.State, filepath.Join(h.Root, "io.containerd.runtime.v2.task"))
	files, settings, state, open := h.files(t), sysctls(t), h.state(t), h.descriptors()
	panics := strings.Count(h.Log(), "panic: ")
	before := h.resetPeak(t)
	attack()
	// Views stay; state checks them. A pod that was started again has another snapshot.
	machine.AssertUnchanged(t, h.Driver.StateDir, h.pod+"/rootfs / ")
	simhost.Same(t, "files of the machine", files, h.files(t))
	simhost.Same(t, "sysctls", settings, sysctls(t))
	simhost.Same(t, "the state directory", state, h.state(t))
	var more []string
	if !testenv.Until(func() bool { more = added(open, h.descriptors()); return len(more) == 0 }) {
		t.Errorf("open descriptors that were not there before: %q", more)
	}
	peak := memory(t, h.shim, "VmHWM")
	t.Logf("the shim's memory: %d KiB before, %d KiB at most; the stock shim's: %d KiB", before, peak, h.stock)
	if peak > h.stock+h.maxPeak {
		t.Errorf("it needed %d KiB more than the stock shim, at most %d are allowed", peak-h.stock, h.maxPeak)
	}
	if strings.Count(h.Log(), "panic: ") > panics {
		t.Error("something panicked")
	}
}

// The oracle says nothing of the containers that another engine of the machine makes and removes
// during an attack.
func TestTheOracleLooksAtItsOwnContainersOnly(t *testing.T) {
	h := newHost(t, simhost.Options{})
	busybox, err := images.Build("busybox")
	if err != nil {
		t.Fatal(err)
	}
	other := testenv.StartEngine(t, busybox, images.Ref("busybox"))
	attack := testenv.RunOptions{Env: []string{one}, Args: []string{"/bin/true"}}
	var remove func()
	h.unharmed(t, func() { h.Run(t, attack); remove = other.Leave(t) })
	h.unharmed(t, func() { h.Run(t, attack); remove() })
	other.Churn(t)
	for range 10 {
		h.attempt(t, testenv.RunOptions{Env: []string{one}, Args: []string{"/bin/sh", "-c", look}})
	}
}

// files are the files of the machine that attacks aim at: the canary, the driver's, the system's.
func (h *host) files(t testing.TB) []string {
	t.Helper()
	lines := append(simhost.Files(t, h.canary), times(t, h.canary)...)
	lines = append(lines, times(t, h.Driver.Root)...)
	lines = append(lines, times(t, h.Driver.DevRoot)...)
	for _, name := range []string{"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/passwd", "/etc/ld.so.preload"} {
		data, err := os.ReadFile(name)
		lines = append(lines, fmt.Sprintf("%s: %q %v", name, data, err))
	}
	return lines
}

// times is one line for each file below dir, with its owner, mode and times.
func times(t testing.TB, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(name, &st)
		}
		lines = append(lines, fmt.Sprintf("%s %o %d:%d %d modified %d changed %d", name, st.Mode, st.Uid, st.Gid, st.Size, st.Mtim.Nano(), st.Ctim.Nano()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// sysctls are the settings of the kernel: what may be written below /proc/sys. The network's come
// and go with interfaces, the kernel itself changes three that are left out, and a kubelet on the
// machine sets its own.
func sysctls(t testing.TB) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir("/proc/sys", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == "/proc/sys/net" || name == "/proc/sys/fs/binfmt_misc":
			return fs.SkipDir
		case slices.Contains([]string{"ns_last_pid", "perf_event_max_sample_rate", "tainted"}, d.Name()), slices.Contains(testenv.KubeletSettings, name):
			return nil
		}
		if info, err := d.Info(); err != nil || info.IsDir() || info.Mode()&0o600 != 0o600 {
			return err
		}
		data, err := os.ReadFile(name)
		lines = append(lines, fmt.Sprintf("%s %q %v", name, data, err != nil))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// known matches the names of what the shim keeps: views, events, facts about the driver, locks.
// The reservation of a probe that was killed, moving-0.json, counts for nothing: no process has
// locked it.
var known = regexp.MustCompile(`^(view|lock|driver-[a-z0-9-]+\.json|events\.jsonl|moving-[0-9]+\.json|[a-z]+\.(json|lock|json\.lock))$`)

// state is one line for each other entry of the state directory.
func (h *host) state(t testing.TB) []string {
	t.Helper()
	views := namesIn(filepath.Join(h.Driver.StateDir, "view"))
	if len(views) > maxViews {
		t.Errorf("%d views of one driver", len(views))
	}
	var lines []string
	for _, name := range namesIn(h.Driver.StateDir) {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(h.Driver.StateDir, name), &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid != 0 || st.Mode&0o022 != 0 {
			t.Errorf("%s of the state directory has mode %o and owner %d", name, st.Mode, st.Uid)
		}
		if !known.MatchString(name) {
			lines = append(lines, fmt.Sprintf("%s %o", name, st.Mode))
		}
	}
	return lines
}

// namesIn are the names in a directory, which need not exist.
func namesIn(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

var inode = regexp.MustCompile(`\[\d+\]`)

// descriptors are the open descriptors of containerd and of the pod's shim. Handles of processes
// that have ended are closed at the next garbage collection. With cgroup v1 containerd's OOM
// watcher, which the shim embeds, keeps an eventfd for good if its cgroup's path is used again
// before the kernel reports that the cgroup is gone.
func (h *host) descriptors() []string {
	var list []string
	for name, pid := range map[string]int{"containerd": h.PID(), "shim": h.shim} {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		for _, fd := range namesIn(dir) {
			target, err := os.Readlink(filepath.Join(dir, fd))
			if err != nil || strings.Contains(target, "[pidfd]") || target == "pidfd:" || strings.Contains(target, "[eventfd]") {
				continue
			}
			list = append(list, fmt.Sprintf("%s %s", name, inode.ReplaceAllString(target, "")))
		}
	}
	return list
}

// added returns the lines that occur more often in after than in before.
func added(before, after []string) []string {
	count := map[string]int{}
	for _, line := range before {
		count[line]++
	}
	var more []string
	for _, line := range after {
		if count[line]--; count[line] < 0 {
			more = append(more, line)
		}
	}
	return more
}

// processorTime is what the shim has used, without the programs that it ran: proc_pid_stat(5), the
// fields utime and stime, in ticks of 10 ms.
func (h *host) processorTime(t testing.TB) time.Duration {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.shim))
	if err != nil {
		t.Fatal(err)
	}
	ticks := 0
	// The name of the program is in parentheses and may have anything in it.
	for _, field := range strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// memory is a value of the status of a shim, in KiB.
func memory(t testing.TB, shim int, name string) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", shim))
	if err != nil {
		t.Fatalf("the shim has ended: %v", err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); f[0] == name+":" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s", name)
	return 0
}

// resetPeak resets the shim's peak to its present memory, which it returns.
func (h *host) resetPeak(t testing.TB) int {
	t.Helper()
	// proc(5), clear_refs: 5 resets VmHWM.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", h.shim), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
	return memory(t, h.shim, "VmHWM")
}

// look prints the mount table and every file with the canary's name. It skips the depths of sysfs,
// which has a hundred times as many files as the image.
const look = "cat /proc/self/mountinfo; find / -path '/proc/*' -prune -o -path '/sys/*/*/*' -prune -o -name " + marker + " -print 2>/dev/null; echo done"

type mount struct{ dev, root, point, kind, source string }

func parseMounts(mountinfo string) []mount {
	var mounts []mount
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		dash := slices.Index(f, "-")
		if len(f) < 10 || dash < 6 || len(f) < dash+3 {
			continue
		}
		mounts = append(mounts, mount{f[2], f[3], f[4], f[dash+1], f[dash+2]})
	}
	return mounts
}

// onDisk is a host path as mountinfo's field 4 has it: relative to its file system.
func onDisk(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	best := mount{}
	for _, m := range parseMounts(string(data)) {
		if (name == m.point || strings.HasPrefix(name, strings.TrimSuffix(m.point, "/")+"/")) && len(m.point) >= len(best.point) {
			best = m
		}
	}
	return filepath.Join(best.root, strings.TrimPrefix(name, best.point))
}

// noHostDirectory fails the test if a mount of a container shows anything of the
// host but driver files, its own root, and the volumes that it was given.
func (h *host) noHostDirectory(t testing.TB, out string, volumes ...string) {
	t.Helper()
	if strings.Contains(out, "/"+marker) {
		t.Errorf("the container sees the canary:\n%s", out)
	}
	// A mount that another engine made since may have the number that one of the container had.
	devices := map[string]bool{}
	for line := range strings.Lines(h.MountTable(t)) {
		for _, m := range parseMounts(line) {
			devices[m.dev] = devices[m.dev] || h.IsOwn(line) || strings.Contains(h.mounts, line)
		}
	}
	driver := onDisk(t, h.Driver.Root)
	for i := range volumes {
		volumes[i] = onDisk(t, volumes[i])
	}
	cache := onDisk(t, h.State)
	mounts := parseMounts(out)
	if len(mounts) < 5 {
		t.Fatalf("no mount table:\n%s", out)
	}
	for _, m := range mounts {
		switch {
		case !devices[m.dev]: // the container's own
		case slices.Contains([]string{"sysfs", "proc", "mqueue", "cgroup", "cgroup2", "devpts"}, m.kind):
		case m.point == "/":
		case m.kind == "tmpfs" && m.source == "nvidia-shim" && m.root == "/":
		case strings.HasPrefix(m.root, driver+"/"):
			if info, err := os.Lstat(filepath.Join(h.Driver.Root, strings.TrimPrefix(m.root, driver))); err == nil && !info.Mode().IsRegular() {
				t.Errorf("a mount of %s at %s: %v", m.root, m.point, info.Mode())
			}
		// What the shim made in the bundle. If /etc or /dev is a link at that moment, runc follows
		// it inside the root, so the mount may be elsewhere in the container.
		case strings.HasPrefix(m.root, cache+"/") && slices.Contains([]string{"ld.so.cache", "application-profile.conf", "dri-by-path"}, path.Base(m.root)):
		case slices.Contains(volumes, m.root):
		default:
			t.Errorf("the host's %s (%s) is mounted at %s", m.root, m.kind, m.point)
		}
	}
}

// clean fails the test unless a container ran, or was refused in one line.
func clean(t testing.TB, r testenv.Result) (ran bool) {
	t.Helper()
	if r.ExitCode == 0 {
		return true
	}
	if text := strings.TrimSpace(r.Error); !strings.HasPrefix(text, "ctr: ") || strings.Count(text, "\n") > 1 || strings.Contains(text, "panic") {
		t.Errorf("no clean failure: exit status %d, %q", r.ExitCode, r.Error)
	}
	return false
}
