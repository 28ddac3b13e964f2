package testenv

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Output runs a command to its end. An exit status other than 0 is in the Result; err is
// a failure to run it, or that it took longer than the limit.
func Output(limit time.Duration, cmd *exec.Cmd) (Result, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// A shim that the command started could hold its pipes open.
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return Result{}, err
	}
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	r := Result{Output: stdout.String(), Error: stderr.String()}
	if !timer.Stop() {
		return r, fmt.Errorf("%s: not done after %v", strings.Join(cmd.Args, " "), limit)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		r.ExitCode = exit.ExitCode()
		return r, nil
	}
	return r, err
}

// Command is a program that runs until it is stopped.
type Command struct {
	Name string
	Argv []string
	Dir  string
	Env  []string
	// Log is the file to which its output is appended.
	Log string
	// Attributes are further attributes of its process.
	Attributes syscall.SysProcAttr
	// End is the signal that ends it, SIGTERM by default. It is sent as well if this
	// process ends.
	End syscall.Signal

	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has been reaped
	err    error         // how it ended, valid once exited is closed
}

// Start starts the program. It ends with this process.
func (c *Command) Start() error {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = c.Dir, c.Env, log, log
	// A process group of its own keeps a terminal's Ctrl-C for the test, which then
	// stops the program in order.
	attributes := c.Attributes
	c.End = cmp.Or(c.End, syscall.SIGTERM)
	attributes.Setpgid, attributes.Pdeathsig = true, c.End
	cmd.SysProcAttr = &attributes
	exited, started := make(chan struct{}), make(chan error, 1)
	go func() {
		// Pdeathsig follows the thread that forked, so that thread must last as long.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(exited)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", c.Name, err)
	}
	c.cmd, c.exited = cmd, exited
	return nil
}

// PID is the process.
func (c *Command) PID() int { return c.cmd.Process.Pid }

// Stop ends the process and waits for it.
func (c *Command) Stop() {
	if c.cmd == nil {
		return
	}
	for _, sig := range []syscall.Signal{c.End, syscall.SIGKILL} {
		// Without effect on a process that has been reaped.
		_ = c.cmd.Process.Signal(sig)
		select {
		case <-c.exited:
			return
		case <-time.After(10 * time.Second):
		}
	}
	<-c.exited
}

// Ended returns nil while the process runs, and afterwards an error that says how it ended.
func (c *Command) Ended() error {
	select {
	case <-c.exited:
		return fmt.Errorf("%s ended: %w\n%s", c.Name, c.err, c.Tail(8<<10))
	default:
		return nil
	}
}

// Tail is the end of the log.
func (c *Command) Tail(limit int) string {
	data, err := os.ReadFile(c.Log)
	if err != nil {
		return err.Error()
	}
	if len(data) > limit {
		data = data[len(data)-limit:]
	}
	return fmt.Sprintf("end of %s:\n%s", filepath.Base(c.Log), data)
}
