package procfs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

const status = "Name:\tx\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n"

func TestAProcessOfTheHostIsFound(t *testing.T) {
	r := testtree.NewRoot(t)
	proc := FS(filepath.Join(r.Dir, "proc"))
	r.Process("proc", 10, "/opt/x/containerd", []string{"A=b"}, "-c", "/etc/x")
	r.Process("proc", 11, "/opt/k3s", nil) // calls itself containerd
	r.Write("proc/11/comm", "containerd\n")
	r.Process("proc", 12, "/usr/bin/dockerd", nil)
	list := proc.Running("containerd")
	if len(list) != 2 || list[0].PID != 10 || list[0].Program != "/opt/x/containerd" || list[0].Args[2] != "/etc/x" || list[0].Environ["A"] != "b" || list[1].Program != "/opt/k3s" {
		t.Fatalf("%+v", list)
	}
	if !list[0].Executes(r.Dir+"/opt/x/containerd") || list[0].Executes(r.Dir+"/opt/k3s") || list[0].Executes("/opt/x/containerd") {
		t.Error("its program is another one")
	}
}

// Each of these could be a program of a user or of a container, at a path that root has on the host.
func TestT74AProcessThatIsNotRootOfTheHostIsNone(t *testing.T) {
	for name, change := range map[string]func(testtree.Root){
		"another user's": func(r testtree.Root) {
			r.Write("proc/10/status", strings.Replace(status, "Uid:\t0\t0", "Uid:\t65534\t0", 1))
		},
		"root without CAP_SYS_ADMIN": func(r testtree.Root) {
			r.Write("proc/10/status", strings.Replace(status, "000001ffffffffff", "00000000a80425fb", 1))
		},
		"root of a user namespace":        func(r testtree.Root) { r.ReplaceLink("proc/10/ns/user", "user:[2]") },
		"in a PID namespace":              func(r testtree.Root) { r.ReplaceLink("proc/10/ns/pid", "pid:[2]") },
		"in a mount namespace":            func(r testtree.Root) { r.ReplaceLink("proc/10/ns/mnt", "mnt:[2]") },
		"in another root directory":       func(r testtree.Root) { r.ReplaceLink("proc/10/root", filepath.Join(r.Dir, "opt")) },
		"a hidden process":                func(r testtree.Root) { r.Check(os.Remove(filepath.Join(r.Dir, "proc/10/status"))) },
		"hidden namespaces":               func(r testtree.Root) { r.Check(os.RemoveAll(filepath.Join(r.Dir, "proc/10/ns"))) },
		"process 1 without namespaces":    func(r testtree.Root) { r.Check(os.RemoveAll(filepath.Join(r.Dir, "proc/1/ns"))) },
		"a program of another user":       func(r testtree.Root) { r.Check(os.Chown(filepath.Join(r.Dir, "opt/containerd"), 65534, 0)) },
		"a program that others can write": func(r testtree.Root) { r.Check(os.Chmod(filepath.Join(r.Dir, "opt/containerd"), 0o757)) },
		"a directory that others can write": func(r testtree.Root) {
			r.Check(os.Chmod(filepath.Join(r.Dir, "opt"), 0o757))
		},
		"a directory of another user": func(r testtree.Root) { r.Check(os.Chown(filepath.Join(r.Dir, "opt"), 65534, 0)) },
		"a file that is elsewhere": func(r testtree.Root) {
			r.Write("containerd", "")
			r.ReplaceLink("proc/1/root", filepath.Join(r.Dir, "opt"))
			r.ReplaceLink("proc/10/root", filepath.Join(r.Dir, "opt"))
			r.ReplaceLink("proc/10/exe", filepath.Join(r.Dir, "containerd"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := testtree.NewRoot(t)
			r.Process("proc", 10, "/opt/containerd", nil)
			proc := FS(filepath.Join(r.Dir, "proc"))
			if len(proc.Running("containerd")) != 1 {
				t.Fatal("it was not found before")
			}
			change(r)
			if list := proc.Running("containerd"); len(list) > 0 {
				t.Errorf("%+v", list)
			}
		})
	}
}

// start starts a copy of sleep with a name of its own. In the procfs, which has no other process of
// this machine, this process is process 1: tests may run in a mount namespace of their own.
func start(t *testing.T, name string, flags uintptr) FS {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	testtree.Check(t, err)
	text, err := os.ReadFile(sleep)
	testtree.Check(t, err)
	testtree.Check(t, os.WriteFile(name, text, 0o755))
	cmd := exec.Command(name, "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: flags}
	testtree.Check(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	proc := FS(t.TempDir())
	for pid, of := range map[int]int{1: os.Getpid(), cmd.Process.Pid: cmd.Process.Pid} {
		testtree.Check(t, os.Symlink(Host.Path(of, ""), proc.Path(pid, "")))
	}
	return proc
}

// A package replaces the program of a daemon that runs.
func TestAProgramThatWasReplaced(t *testing.T) {
	name := filepath.Join(testtree.NewRoot(t).Dir, "replaced-daemon")
	proc := start(t, name, 0)
	for _, step := range []func() error{
		func() error { return nil },
		func() error { return os.Remove(name) },
		func() error { return os.WriteFile(name, nil, 0o755) },
	} {
		testtree.Check(t, step())
		list := proc.Running("replaced-daemon")
		if len(list) != 1 || list[0].Program != name || !list[0].Executes(name) || list[0].Executes("/bin/sh") {
			t.Errorf("%+v", list)
		}
	}
	// The file has another name: it is not what root has at that path.
	other := filepath.Join(filepath.Dir(name), "linked-daemon")
	proc = start(t, other, 0)
	testtree.Check(t, os.Link(other, other+"2"))
	testtree.Check(t, os.Remove(other))
	if list := proc.Running("linked-daemon"); len(list) > 0 {
		t.Errorf("%+v", list)
	}
}

func TestAProcessInAMountNamespaceOfItsOwnIsNone(t *testing.T) {
	name := filepath.Join(testtree.NewRoot(t).Dir, "other-daemon")
	if list := start(t, name, syscall.CLONE_NEWNS).Running("other-daemon"); len(list) > 0 {
		t.Errorf("%+v", list)
	}
	if list := start(t, name+"2", 0).Running("other-daemon2"); len(list) != 1 {
		t.Errorf("without one: %+v", list)
	}
}
