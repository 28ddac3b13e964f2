package testenv

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Engine is a container engine of another user of the same host: a containerd with the stock shim,
// whose names and directories are none of a test's environment.
type Engine struct {
	*Env
}

// StartEngine starts an engine, which ends with the test. image is the tar of an image with a shell,
// and ref its reference.
func StartEngine(t testing.TB, image, ref string) *Engine {
	t.Helper()
	o, err := Options{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEnv(filepath.Dir(os.TempDir()), "engine-", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Stop(t) })
	if err := e.startDaemon(); err != nil {
		t.Fatalf("start containerd: %v\n%s", err, e.Log())
	}
	e.Import(t, image)
	e.Image = ref
	return &Engine{e}
}

// Leave makes what engines and their helpers make outside their directories: a running container,
// cgroups, a mount and files of /run. remove removes it.
func (e *Engine) Leave(t testing.TB) (remove func()) {
	t.Helper()
	name := e.NewID()
	r, err := e.TryRun(t, RunOptions{ID: name, Runtime: StockRuntime, Args: []string{"/bin/sh", "-c", "exec sleep 600"}, Detach: true})
	if err != nil || r.ExitCode != 0 {
		t.Errorf("a container of another engine: %v %s", err, r.Error)
	}
	dirs := []string{filepath.Join("/run", e.ID), filepath.Join("/run", e.ID, name)}
	tops, _ := filepath.Glob(filepath.Join(cgroupRoot, "*", "cgroup.procs"))
	for _, top := range append(tops, filepath.Join(cgroupRoot, "cgroup.procs")) {
		if _, err := os.Stat(top); err == nil {
			dirs = append(dirs, filepath.Join(filepath.Dir(top), e.ID+name), filepath.Join(filepath.Dir(top), e.ID+name, "pod"))
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	for _, dir := range dirs {
		check(os.Mkdir(dir, 0o755))
	}
	check(unix.Mount("none", dirs[1], "tmpfs", 0, ""))
	check(os.WriteFile(filepath.Join("/run", e.ID+".lock"), nil, 0o600))
	return func() {
		check(os.Remove(filepath.Join("/run", e.ID+".lock")))
		check(unix.Unmount(dirs[1], 0))
		for i := len(dirs) - 1; i >= 0; i-- {
			check(unix.Rmdir(dirs[i]))
		}
		check(e.forceRemove(name))
	}
}

// Churn makes and removes containers until the test ends.
func (e *Engine) Churn(t testing.TB) {
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		made := 0
		for {
			select {
			case <-stop:
				done <- made
				return
			default:
				e.Leave(t)()
				made++
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		t.Logf("another engine made and removed %d containers meanwhile", <-done)
	})
}
