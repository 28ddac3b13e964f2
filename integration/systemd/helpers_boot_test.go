package systemd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// bootName is argv[0] of the process that becomes a machine's systemd.
const bootName = "systemd-test-machine"

// bootPlan is what that process is told, as JSON in its first argument.
type bootPlan struct {
	// Lower is the Debian tree, Upper and Work what overlayfs needs, Root where they
	// are mounted.
	Lower, Upper, Work, Root string
	// Hostname is the machine's name.
	Hostname string
	// Binds are directories of the host in the machine.
	Binds []bind
}

// bind is a directory of the host at Target of the machine.
type bind struct {
	Source, Target string
	ReadOnly       bool
}

// The pipe that the starter listens on: an error's text, or nothing and the end of
// file when systemd has been executed.
const bootPipe = 3

// bootMain runs in the new namespaces; it never returns.
func bootMain() {
	unix.CloseOnExec(bootPipe)
	err := runPlan(os.Args[1])
	fmt.Fprint(os.NewFile(bootPipe, "pipe"), err)
	os.Exit(1)
}

func runPlan(text string) error {
	// The cgroup namespace is the thread's, and this thread executes systemd.
	runtime.LockOSThread()
	var p bootPlan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	// Only now, when the process is in the machine's cgroup: that becomes the root.
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare the cgroup namespace: %w", err)
	}
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return err
	}
	for _, step := range []func() error{p.mountRoot, p.mountAPI, p.mountDev, p.mountBinds, p.pivot, dropCapabilities} {
		if err := step(); err != nil {
			return err
		}
	}
	err := unix.Exec("/lib/systemd/systemd", []string{"systemd"}, []string{"container=other", "PATH=" + systemPath})
	return fmt.Errorf("execute systemd: %w", err)
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", kind, target, err)
	}
	return nil
}

// bindAt binds a directory or file; a read-only bind needs a second step.
func bindAt(source, target string, readOnly bool) error {
	if err := mount(source, target, "bind of "+source, unix.MS_BIND, ""); err != nil || !readOnly {
		return err
	}
	return mount("", target, "read-only", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

func (p bootPlan) mountRoot() error {
	if err := mount("", "/", "private", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	return mount("overlay", p.Root, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", p.Lower, p.Upper, p.Work))
}

// mountAPI mounts the kernel's file systems. Settings of the kernel that are not of
// a namespace stay as the host has them.
func (p bootPlan) mountAPI() error {
	const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	at := func(name string) string { return filepath.Join(p.Root, name) }
	if err := mount("proc", at("proc"), "proc", safe, ""); err != nil {
		return err
	}
	for _, name := range []string{"proc/sys", "proc/sysrq-trigger"} {
		if err := bindAt(at(name), at(name), true); err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without SysRq
			return err
		}
	}
	if err := mount("sysfs", at("sys"), "sysfs", safe, ""); err != nil {
		return err
	}
	if err := mount("", at("sys"), "read-only", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|safe, ""); err != nil {
		return err
	}
	if err := mount("cgroup2", at("sys/fs/cgroup"), "cgroup2", safe, ""); err != nil {
		return err
	}
	return mount("tmpfs", at("run"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755")
}

// mountDev makes a /dev with the standard nodes and no other.
func (p bootPlan) mountDev() error {
	dev := filepath.Join(p.Root, "dev")
	if err := mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		target := filepath.Join(dev, name)
		if err := os.WriteFile(target, nil, 0o666); err != nil {
			return err
		}
		if err := bindAt("/dev/"+name, target, false); err != nil {
			return err
		}
	}
	for _, name := range []string{"pts", "shm"} {
		if err := os.Mkdir(filepath.Join(dev, name), 0o755); err != nil {
			return err
		}
	}
	if err := mount("devpts", filepath.Join(dev, "pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"); err != nil {
		return err
	}
	if err := mount("tmpfs", filepath.Join(dev, "shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	return nil
}

func (p bootPlan) mountBinds() error {
	for _, b := range p.Binds {
		target := filepath.Join(p.Root, b.Target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := bindAt(b.Source, target, b.ReadOnly); err != nil {
			return err
		}
	}
	return nil
}

// pivot leaves the host's file systems.
func (p bootPlan) pivot() error {
	if err := os.Chdir(p.Root); err != nil {
		return err
	}
	// The old root comes to lie on the new one, pivot_root(2), and goes.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the host's root: %w", err)
	}
	if _, err := os.Lstat(p.Root); err == nil {
		return fmt.Errorf("the host's files are still there: %s", p.Root)
	}
	return os.Chdir("/")
}

// dropCapabilities takes what reaches beyond the namespaces from systemd and from
// everything that it starts.
func dropCapabilities() error {
	for _, c := range []uintptr{unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_SYS_BOOT, unix.CAP_SYS_TIME, unix.CAP_AUDIT_CONTROL, unix.CAP_AUDIT_READ, unix.CAP_SYSLOG} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return nil
}
