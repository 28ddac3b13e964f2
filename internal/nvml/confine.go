package nvml

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// maxData limits the private memory of the confined program, in bytes (RLIMIT_DATA). Address
// space is not limited: libcuda reserves more than a host has.
const maxData = 4 << 30

// maxTmpfs limits each writable directory of the confined program.
const maxTmpfs = "size=16m,nr_inodes=1k,mode=1777"

// keptCapabilities returns the capabilities of the program that answers q. If it suspends, libcuda
// and NVML read /proc/PID of processes of other users, and open their files there. The driver
// accepts memory limits from programs with CAP_SYS_ADMIN only; such a program reads nothing that a
// container wrote.
func keptCapabilities(q probe.Questions) uint64 {
	if q.AsksMemory() {
		return 1 << unix.CAP_SYS_ADMIN // guard: probe: one capability when it limits memory
	}
	return 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_SYS_PTRACE
}

// kernelFiles are the files of /proc, besides those of processes, that the confined program sees.
var kernelFiles = []string{
	"cgroups", "cmdline", "cpuinfo", "devices", "driver", "filesystems", "interrupts", "loadavg", "meminfo",
	"misc", "modules", "stat", "sys", "uptime", "version", "vmstat",
}

// Confine confines the calling thread, and the program that it executes next: nvidia-shim-nvml,
// which answers q. If it suspends or resumes, its libcuda reads what the processes wrote, and
// afterwards probe.ReservationFD is the file in which it reserves memory. The program keeps the
// capabilities in keptCapabilities. In a mount namespace of its own every mount is read-only,
// without device nodes, except cgroups if it limits memory; /dev has NVIDIA's alone, and /proc has
// only these processes and itself. It has no network. The paths keep stay visible even below /tmp,
// which is empty.
//
// The caller has locked its goroutine to the thread, and cannot go on if this fails.
func Confine(host config.Host, q probe.Questions, keep ...string) error {
	if !q.AsksMemory() {
		if err := passReservation(host.StateDir); err != nil {
			return err
		}
	}
	// If the host runs out of memory, this process ends first.
	// guard: probe: ends first without memory
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
		return err
	}
	// guard: probe: limit of memory
	for what, limit := range map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_DATA: maxData} {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return os.NewSyscallError("setrlimit", err)
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil { // guard: probe: no network
		return os.NewSyscallError("unshare", err)
	}
	if err := confineMounts(host, q, keep); err != nil {
		return err
	}
	return dropCapabilities(keptCapabilities(q))
}

// passReservation makes a new reservation the descriptor probe.ReservationFD of the next program.
func passReservation(stateDir string) error {
	r, err := openReservation(stateDir)
	if err != nil {
		return err
	}
	if fd := int(r.file.Fd()); fd == probe.ReservationFD {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	} else {
		err = unix.Dup3(fd, probe.ReservationFD, 0)
	}
	runtime.KeepAlive(r.file)
	if err != nil {
		return fmt.Errorf("pass on the reservation: %w", err)
	}
	return nil
}

// IsConfined reports whether Confine was called for q in an earlier program of this process.
func IsConfined(q probe.Questions) bool {
	bounding, err := boundingSet()
	if err != nil || bounding&^keptCapabilities(q) != 0 {
		return false
	}
	locked, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	return err == nil && locked == 1
}

// confineMounts changes the mounts of this thread's mount namespace.
func confineMounts(host config.Host, q probe.Questions, keep []string) error {
	cgroups := ""
	if q.AsksMemory() {
		var err error
		if cgroups, err = mountOf(q.CgroupPath); err != nil {
			return err
		}
		keep = append(keep, cgroups)
	}
	// The mounts that follow must not propagate to the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil { // guard: probe: private mounts
		return &os.PathError{Op: "make private", Path: "/", Err: err}
	}
	if err := confineDev(filepath.Join(host.DevRoot, "dev")); err != nil { // guard: probe: NVIDIA's nodes alone
		return err
	}
	// guard: probe: read-only mounts
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &attr)
	if errors.Is(err, unix.ENOSYS) {
		return errors.New("it needs Linux 5.12 or later")
	}
	if err != nil {
		return &os.PathError{Op: "make read-only", Path: "/", Err: err}
	}
	attr = unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/dev", unix.AT_RECURSIVE, &attr); err != nil {
		return &os.PathError{Op: "allow devices", Path: "/dev", Err: err}
	}
	// cuInit removes a file that it made, and fails if it cannot (driver 580).
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		if err := emptyTmp(dir, append(keep, host.DriverRoot, host.DevRoot, host.ProcRoot, host.SysRoot, host.StateDir)); err != nil {
			return err
		}
	}
	if cgroups != "" { // NVML changes the files of the controller dmem, of the cgroup and of those above
		if err := unix.MountSetattr(unix.AT_FDCWD, cgroups, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("make the cgroups writable: %w", err)
		}
	}
	ids := append(slices.Clone(q.Suspend), q.Resume...)
	return confineProc(ids) // guard: probe: the container's processes alone
}

// confineDev replaces /dev by a directory with NVIDIA's nodes in dev, and a few that every program
// may expect.
func confineDev(dev string) error {
	entries, err := os.ReadDir(dev)
	if err != nil {
		return err
	}
	var nodes []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "nvidia") || e.Name() == "dxg" {
			nodes = append(nodes, filepath.Join(dev, e.Name()))
		}
	}
	for _, name := range []string{"full", "null", "random", "urandom", "zero"} {
		nodes = append(nodes, filepath.Join("/dev", name))
	}
	trees := map[string]int{}
	for _, node := range nodes {
		tree, err := openTree(unix.AT_FDCWD, node)
		if errors.Is(err, fs.ErrNotExist) { // it was removed, or is a link to nothing
			continue
		}
		if err != nil {
			return err
		}
		trees[filepath.Base(node)] = tree
	}
	if err := mountTmpfs("/dev", "size=64k,mode=755"); err != nil {
		return err
	}
	for name, tree := range trees {
		if err := attachTree(tree, filepath.Join("/dev", name)); err != nil {
			return err
		}
	}
	return os.Mkdir("/dev/shm", 0o755)
}

// emptyTmp replaces a directory by an empty one that is writable, except for the paths keep.
func emptyTmp(dir string, keep []string) error {
	trees := map[string]int{}
	for _, name := range keep {
		if !strings.HasPrefix(name, dir+"/") || trees[name] != 0 {
			continue
		}
		tree, err := openTree(unix.AT_FDCWD, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		trees[name] = tree
	}
	err := mountTmpfs(dir, maxTmpfs)
	if errors.Is(err, fs.ErrNotExist) { // there is none
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(trees)) {
		if _, exists := os.Lstat(name); err != nil || exists == nil { // it is in another one
			continue
		}
		if err = os.MkdirAll(filepath.Dir(name), 0o755); err == nil {
			err = attachTree(trees[name], name)
		}
	}
	return err
}

// confineProc replaces /proc by a directory with these processes, their threads, this process and
// kernelFiles. A directory of a process that has ended stays empty: a later process with its PID is
// not in it.
func confineProc(ids []procfs.ID) error {
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/proc", Err: err}
	}
	defer unix.Close(proc)
	self := strconv.Itoa(os.Getpid())
	names := append([]string{self}, kernelFiles...)
	links := map[string]string{"self": self, "thread-self": filepath.Join(self, "task", self), "mounts": "self/mounts"}
	for _, id := range ids {
		if now, err := procfs.Host.ID(id.PID); err != nil || now != id {
			continue // it has ended
		}
		pid := strconv.Itoa(id.PID)
		names = append(names, pid)
		threads, _ := os.ReadDir(procfs.Host.Path(id.PID, "task"))
		for _, thread := range threads {
			if thread.Name() != pid {
				links[thread.Name()] = filepath.Join(pid, "task", thread.Name())
			}
		}
	}
	if err := mountTmpfs("/proc", "mode=555"); err != nil {
		return err
	}
	for _, name := range names {
		tree, err := openTree(proc, name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return err
		}
		if err := attachTree(tree, filepath.Join("/proc", name)); err != nil {
			return err
		}
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join("/proc", name)); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/proc", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return &os.PathError{Op: "make read-only", Path: "/proc", Err: err}
	}
	// cuInit names its threads there, and fails if it cannot (driver 580).
	own := filepath.Join("/proc", self)
	if err := unix.MountSetattr(unix.AT_FDCWD, own, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return &os.PathError{Op: "make writable", Path: own, Err: err}
	}
	return nil
}

func mountTmpfs(dir, options string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return &os.PathError{Op: "mount tmpfs", Path: dir, Err: err}
	}
	return nil
}

// openTree returns a copy of the mounts at and below a path. It is attached by attachTree.
func openTree(dir int, name string) (int, error) {
	tree, err := unix.OpenTree(dir, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return 0, &os.PathError{Op: "open_tree", Path: name, Err: err}
	}
	return tree, nil
}

// attachTree makes a file or directory at a path, and attaches the mounts to it.
func attachTree(tree int, at string) error {
	defer unix.Close(tree)
	var st unix.Stat_t
	err := unix.Fstat(tree, &st)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = unix.Mkdir(at, 0o755)
	} else if err == nil {
		err = unix.Mknod(at, unix.S_IFREG|0o600, 0)
	}
	if err == nil {
		err = unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if err != nil {
		return &os.PathError{Op: "attach", Path: at, Err: err}
	}
	return nil
}

// boundingSet returns the capabilities that programs of this thread can have.
func boundingSet() (set uint64, err error) {
	for capability := uintptr(0); ; capability++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, capability, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) { // beyond the last one
			return set, nil
		}
		if err != nil {
			return set, err
		}
		set |= uint64(has) << capability
	}
}

// dropCapabilities leaves the capabilities kept to the program that this thread executes: those of
// root's program are in the bounding set (capabilities(7)).
func dropCapabilities(kept uint64) error {
	bounding, err := boundingSet()
	if err != nil {
		return os.NewSyscallError("prctl", err)
	}
	for capability := range uintptr(64) {
		if bounding&^kept&(1<<capability) != 0 { // guard: probe: two capabilities
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
				return fmt.Errorf("drop capability %d: %w", capability, err)
			}
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	low, high := uint32(kept), uint32(kept>>32)
	data := [2]unix.CapUserData{{Effective: low, Permitted: low}, {Effective: high, Permitted: high}}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return os.NewSyscallError("capset", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	// The end of the shim ends this process; the setting is a thread's.
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0))
}
