package kubernetes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// process is a command of Kubernetes that runs until it is stopped.
type process struct {
	name   string
	argv   []string
	dir    string
	env    []string
	log    string
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has been reaped
	err    error         // how it ended, valid once exited is closed
}

// start starts the command; its output goes to the end of its log.
func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Dir, cmd.Env = p.dir, p.env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	exited := make(chan struct{})
	started := make(chan error, 1)
	go func() {
		// Pdeathsig follows the thread that forked.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(exited)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.cmd, p.exited = cmd, exited
	return nil
}

// stop ends the process and waits for it.
func (p *process) stop() {
	if p.cmd == nil {
		return
	}
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		_ = p.cmd.Process.Signal(sig)
		select {
		case <-p.exited:
			return
		case <-time.After(10 * time.Second):
		}
	}
	<-p.exited
}

// ended tells whether the process has ended by itself, and how.
func (p *process) ended() error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s ended: %v\n%s", p.name, p.err, p.tail(8<<10))
	default:
		return nil
	}
}

// tail is the end of the log.
func (p *process) tail(limit int) string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(data) > limit {
		data = data[len(data)-limit:]
	}
	return fmt.Sprintf("end of %s:\n%s", filepath.Base(p.log), data)
}
