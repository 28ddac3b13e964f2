package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/bounded"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
)

// nvmlTimeout is how long NVML may take. Without persistence mode the driver
// initialises every GPU anew, which takes seconds on a large host. A variable for the
// tests.
var nvmlTimeout = 10 * time.Second

// nvmlLock is held by the process that asks NVML, so that a hung driver collects no
// heap of processes that nobody can kill.
const nvmlLock = "nvml.lock"

func nvmlCommand() *cli.Command {
	return &cli.Command{
		Name:  "nvml",
		Usage: "what only NVML knows of this host's GPUs",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "what", Usage: "`PART` to print: facts, for the shim; info, what the GPUs are; state, what they do", Value: "facts"},
			&cli.DurationFlag{Name: "timeout", Usage: "give up after `TIME`", Value: nvmlTimeout},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			part, ok := nvmlParts[c.String("what")]
			if !ok {
				return usage(fmt.Errorf("--what %q is not one of facts, info, state", c.String("what")))
			}
			cfg, err := loader(c)()
			if err != nil {
				return err
			}
			return underWatch(cfg.Host, c.Duration("timeout"), func() error {
				answer, err := part(cfg.Host)
				if err != nil {
					return err
				}
				return printJSON(c.Root().Writer, answer)
			})
		},
	}
}

// nvmlParts are what the probe can be asked for.
var nvmlParts = map[string]func(config.Host) (any, error){
	"facts": func(h config.Host) (any, error) { return nvml.Facts(h) },
	"info":  func(h config.Host) (any, error) { return nvml.Infos(h) },
	"state": func(h config.Host) (any, error) { return nvml.States(h) },
}

// underWatch runs what loads NVML, alone on this host, and ends the process when it
// takes longer than limit: a thread in the kernel cannot be called back.
func underWatch(host config.Host, limit time.Duration, fn func() error) error {
	lock, err := lockNVML(host, limit)
	if err != nil {
		return err
	}
	if lock != nil {
		defer lock.Close()
	}
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("NVML has not answered within %s: nvidia-smi on this host should hang as well; without persistence mode the driver starts slowly (nvidia-persistenced mends that), else look for Xid in the kernel log", limit)
	}
}

// lockNVML takes the lock, which goes when this process is gone: a process that
// hangs in the kernel keeps it. It is no lock against other users' processes.
func lockNVML(host config.Host, limit time.Duration) (*os.File, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	state, err := view.OpenState(host.StateDir)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(host.StateDir, nvmlLock)
	lock, err := state.Lock(nvmlLock, 0)
	for start := time.Now(); errors.Is(err, view.ErrBusy); lock, err = state.Lock(nvmlLock, 10*time.Millisecond) {
		pid, until := holder(name)
		switch {
		case !until.IsZero() && time.Now().After(until):
			return nil, fmt.Errorf("process %s asked NVML and was to end at %s, and still hangs: the driver needs a reset or the host a reboot (kill -9 %s does not help where it is in the kernel)", pid, until.Format(time.TimeOnly), pid)
		case time.Since(start) > limit:
			return nil, fmt.Errorf("process %s asks NVML and has not ended within %s", pid, limit)
		}
	}
	if err != nil {
		return nil, err
	}
	// Who holds it and until when, for those who wait.
	note := fmt.Sprintf("%d %d\n", os.Getpid(), time.Now().Add(limit+time.Second).UnixNano())
	if err := errors.Join(lock.Truncate(0), writeAt(lock, note)); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// holder reads who has the lock, and when that process was to end.
func holder(name string) (pid string, until time.Time) {
	data, err := os.ReadFile(name)
	var id int
	var nanos int64
	if err != nil || func() error { _, err := fmt.Sscanf(string(data), "%d %d", &id, &nanos); return err }() != nil {
		return "unknown", time.Time{}
	}
	return fmt.Sprint(id), time.Unix(0, nanos)
}

// self is this very program; tests put another in its place.
var self = "/proc/self/exe"

// askNVML asks in a process of its own, which may hang, and decodes what it prints
// into v; what is one of nvmlParts.
func askNVML(c *cli.Command, what string, v any) error {
	args := []string{"probe", "nvml", "--what=" + what, "--timeout=" + nvmlTimeout.String()}
	if name := c.String("config"); name != "" {
		abs, err := filepath.Abs(name)
		if err != nil {
			return err
		}
		args = append([]string{"--config=" + abs}, args...)
	}
	return askSelf(nvmlTimeout+2*time.Second, v, args...)
}

// askSelf runs this program with args and an empty environment, and decodes what it
// prints. A process that does not end after limit is killed and not waited for.
func askSelf(limit time.Duration, v any, args ...string) error {
	stdout, stderr := bounded.Buffer{Most: 4 << 20}, bounded.Buffer{Most: 64 << 10}
	cmd := exec.Command(self, args...)
	cmd.Args[0] = "nvidia-shimctl" // in lists of processes
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if stdout.TooLong {
			return fmt.Errorf("the process that asked NVML answered more than %d bytes", stdout.Most)
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			line := stderr.FirstLine("nvidia-shimctl")
			if line == "" {
				line = "the process that asked NVML ended with " + exit.String()
			}
			return errors.New(line)
		}
		if err != nil {
			return err
		}
	case <-time.After(limit):
		_ = cmd.Process.Kill()
		return fmt.Errorf("NVML has not answered within %s, and the process that asked it hangs: the driver needs a reset or the host a reboot", limit)
	}
	if err := json.Unmarshal(stdout.Kept, v); err != nil {
		return fmt.Errorf("the process that asked NVML answered what is no JSON: %w", err)
	}
	return nil
}
