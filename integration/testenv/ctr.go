package testenv

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// DefaultRuntime is the runtime of Run and Create when none is named.
const DefaultRuntime = "io.containerd.nvidia.v2"

// StockRuntime is containerd's own runc shim.
const StockRuntime = "io.containerd.runc.v2"

// CtrCommand is a ctr command with this environment's socket and namespace.
func (e *Env) CtrCommand(args ...string) *exec.Cmd {
	argv := append([]string{"--address", e.Address, "--namespace", e.ID}, args...)
	cmd := exec.Command(filepath.Join(e.Options.daemonDir(), "ctr"), argv...)
	cmd.Dir = e.Dir
	// The warning about cgroup v1 would be mixed with what containers print.
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + e.Dir, "CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1"}
	return cmd
}

// CtrErr runs ctr with the environment's socket and namespace. err contains ctr's message.
func (e *Env) CtrErr(args ...string) (stdout, stderr string, err error) {
	r, err := Output(waitLimit, e.CtrCommand(args...))
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("ctr %s: exit status %d: %s", strings.Join(args, " "), r.ExitCode, strings.TrimSpace(r.Error))
	}
	return r.Output, r.Error, err
}

// Ctr runs ctr and fails the test if it fails.
func (e *Env) Ctr(t testing.TB, args ...string) string {
	t.Helper()
	stdout, _, err := e.CtrErr(args...)
	if err != nil {
		t.Fatal(err)
	}
	return stdout
}

// Import puts an image tar into containerd and unpacks it.
func (e *Env) Import(t testing.TB, imageTar string) {
	t.Helper()
	r, err := Output(5*time.Minute, e.CtrCommand("images", "import", "--snapshotter", Snapshotter, imageTar))
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("import %s: %v\n%s%s", imageTar, err, r.Output, r.Error)
	}
}

// RunOptions describes a container. Args are needed unless the image has an entry point.
type RunOptions struct {
	// ID is the container's name; by default a new one.
	ID string
	// Image is the reference of an imported image, by default Env.Image.
	Image string
	// RootfsDir, instead of Image, is a directory used as it is.
	RootfsDir string
	// Runtime is a runtime name or an absolute path to a shim; DefaultRuntime.
	Runtime string
	// Env holds NAME=value, in order. A name may be repeated.
	Env []string
	// Args is the command line in the container.
	Args []string
	// Mounts are in ctr's form: "type=bind,src=/a,dst=/b,options=rbind:ro".
	Mounts []string
	// Annotations holds key=value.
	Annotations []string
	// ReadOnly makes the container's root read-only.
	ReadOnly bool
	// User is "name", "uid" or "uid:gid".
	User string
	// Privileged gives all capabilities and host devices.
	Privileged bool
	// Detach returns when the container has started.
	Detach bool
	// Extra holds further flags of `ctr run`.
	Extra []string
	// Timeout limits the whole command; waitLimit by default.
	Timeout time.Duration
}

// Result is what a command in a container did.
type Result struct {
	// ID is the container's name.
	ID string
	// Output is what the command wrote to its standard output, and to its standard error until
	// standard output ended. A test that needs all of both redirects one to the other.
	Output string
	// Error is what ctr itself printed, for example because a shim refused.
	Error string
	// ExitCode is the command's, or 1 if ctr failed.
	ExitCode int
}

// flags are the flags and operands that `ctr run` and `ctr container create`
// share. It is a pure function of the options and the environment.
func (e *Env) flags(o RunOptions) (flags, operands []string) {
	flags = []string{"--runtime", o.Runtime}
	if o.RootfsDir != "" {
		// ctr takes PATH from an image and has none of its own.
		flags = append(flags, "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	for _, v := range o.Env {
		flags = append(flags, "--env", v)
	}
	for _, v := range o.Mounts {
		flags = append(flags, "--mount", v)
	}
	for _, v := range o.Annotations {
		flags = append(flags, "--annotation", v)
	}
	if o.ReadOnly {
		flags = append(flags, "--read-only")
	}
	if o.User != "" {
		flags = append(flags, "--user", o.User)
	}
	if o.Privileged {
		flags = append(flags, "--privileged")
	}
	if o.RootfsDir != "" {
		flags = append(flags, "--rootfs")
		operands = append(operands, o.RootfsDir)
	} else {
		flags = append(flags, "--snapshotter", Snapshotter)
		operands = append(operands, o.Image)
	}
	flags = append(flags, o.Extra...)
	return flags, append(append(operands, o.ID), o.Args...)
}

func (e *Env) fill(t testing.TB, o RunOptions) RunOptions {
	t.Helper()
	if o.RootfsDir == "" {
		o.Image = cmp.Or(o.Image, e.Image)
	}
	if (o.Image == "") == (o.RootfsDir == "") {
		t.Fatal("RunOptions: exactly one of Image and RootfsDir is needed")
	}
	if o.ID == "" {
		o.ID = e.NewID()
	}
	o.Runtime, o.Timeout = cmp.Or(o.Runtime, DefaultRuntime), cmp.Or(o.Timeout, waitLimit)
	return o
}

// NewID is a container name that this environment has not used yet.
func (e *Env) NewID() string { return fmt.Sprintf("c%d", e.nextID.Add(1)) }

// logged runs ctr with a file for the output of a command. ctr's client library closes
// the FIFOs of a command that has ended whether or not it has read all of its output; a
// shim closes a file when it has written all of standard output to it (copyPipes in
// containerd's shim takes the end of that for the end of both streams), and before it
// deletes the task.
func (e *Env) logged(limit time.Duration, id string, verb []string, args ...string) (Result, error) {
	f, err := os.CreateTemp(e.Dir, "output")
	if err != nil {
		return Result{ID: id}, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	r, err := Output(limit, e.CtrCommand(append(append(verb, "--log-uri", "file://"+f.Name()), args...)...))
	output, readErr := io.ReadAll(f)
	r.ID, r.Output = id, string(output)
	return r, errors.Join(err, readErr)
}

// TryRun runs a container and returns what happened. A failure of ctr itself, for example because
// the shim refused, is exit status 1 with the message in Error; err means that the time was up; the
// container has then been removed.
func (e *Env) TryRun(t testing.TB, o RunOptions) (Result, error) {
	t.Helper()
	o = e.fill(t, o)
	flags, operands := e.flags(o)
	if !o.Detach {
		flags = append([]string{"--rm"}, flags...)
	}
	return e.runCtr(o, append(flags, operands...))
}

// RunConfig runs a container from an OCI configuration: `ctr run` with these flags.
func (e *Env) RunConfig(t testing.TB, id string, flags ...string) Result {
	t.Helper()
	o := RunOptions{ID: id, Timeout: waitLimit}
	r, err := e.runCtr(o, append(append([]string{"--rm", "--runtime", DefaultRuntime}, flags...), id))
	if err != nil {
		t.Fatalf("%v\n%s%s", err, r.Output, r.Error)
	}
	return r
}

func (e *Env) runCtr(o RunOptions, args []string) (r Result, err error) {
	verb := []string{"run"}
	if e.Options.Cgroup == 2 {
		// A cgroup2 tree beside v1 hierarchies, or in a container, has no cpu
		// controller, and ctr's default of 1024 shares could not be set.
		// `containers create` sets none.
		verb = append(verb, "--cpu-shares", "0")
	}
	if o.Detach {
		r, err = Output(o.Timeout, e.CtrCommand(append(append(verb, "--detach", "--null-io"), args...)...))
		r.ID = o.ID
	} else {
		r, err = e.logged(o.Timeout, o.ID, verb, args...)
	}
	if err != nil {
		e.forceRemove(o.ID)
	}
	return r, err
}

// Run runs a container and fails the test if it cannot be run in time. The
// command's own exit status is for the caller to judge.
func (e *Env) Run(t testing.TB, o RunOptions) Result {
	t.Helper()
	r, err := e.TryRun(t, o)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, r.Output, r.Error)
	}
	if o.Detach && r.ExitCode != 0 {
		t.Fatalf("run container %s: %s", r.ID, r.Error)
	}
	if o.Detach {
		e.awaitExec(r.ID)
	}
	return r
}

// MustRun is Run for a command that has to exit with 0; it returns its output.
func (e *Env) MustRun(t testing.TB, o RunOptions) string {
	t.Helper()
	r := e.Run(t, o)
	if r.ExitCode != 0 {
		t.Fatalf("%q in container %s: exit status %d\n%s%s", o.Args, r.ID, r.ExitCode, r.Output, r.Error)
	}
	return r.Output
}

// Create makes a container without a task and returns its name; see StartTask.
func (e *Env) Create(t testing.TB, o RunOptions) string {
	t.Helper()
	o = e.fill(t, o)
	flags, operands := e.flags(o)
	e.Ctr(t, append(append([]string{"containers", "create"}, flags...), operands...)...)
	return o.ID
}

// StartTask creates and starts the task of a container that Create made, waits
// for its end and deletes it; the container stays, so it can be started again.
func (e *Env) StartTask(t testing.TB, id string) Result {
	t.Helper()
	r, err := e.logged(waitLimit, id, []string{"tasks", "start"}, id)
	if err != nil {
		e.forceRemove(id)
		t.Fatalf("%v\n%s%s", err, r.Output, r.Error)
	}
	return r
}

// Exec runs a further command in a running container.
func (e *Env) Exec(t testing.TB, id string, args ...string) Result {
	t.Helper()
	r, err := e.logged(waitLimit, id, []string{"tasks", "exec", "--exec-id", e.NewID()}, append([]string{id}, args...)...)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, r.Output, r.Error)
	}
	return r
}

// PIDs returns the processes of a running container as the host numbers them, sorted.
func (e *Env) PIDs(t testing.TB, id string) (pids []int) {
	t.Helper()
	for line := range strings.Lines(e.Ctr(t, "tasks", "ps", id)) {
		var pid int
		if _, err := fmt.Sscan(line, &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		t.Fatalf("container %s has no process", id)
	}
	slices.Sort(pids)
	return pids
}

// Remove kills a container's task, if there is one, and deletes task, container
// and snapshot.
func (e *Env) Remove(t testing.TB, id string) {
	t.Helper()
	if err := e.forceRemove(id); err != nil {
		t.Fatal(err)
	}
}

func (e *Env) forceRemove(id string) error {
	// ctr says "not found" for a container without a task; the last step decides.
	_, _, _ = e.CtrErr("tasks", "rm", "--force", id)
	_, _, err := e.CtrErr("containers", "rm", id)
	return err
}
