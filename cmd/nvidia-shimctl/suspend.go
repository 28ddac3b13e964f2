package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

type taskCall func(ctx context.Context, tasks taskapi.TTRPCTaskService, id string) error

func suspendCommand() *cli.Command {
	return pauseCommand("suspend", "pause a container, or those of a pod, so that they give their GPUs back", func(*cli.Command) taskCall {
		return pauseTask
	})
}

func pauseTask(ctx context.Context, tasks taskapi.TTRPCTaskService, id string) error {
	_, err := tasks.Pause(ctx, &taskapi.PauseRequest{ID: id})
	return err
}

func resumeCommand() *cli.Command {
	gpu := &cli.StringSliceFlag{Name: "gpu", Usage: "move the GPU memory to `[OLD=]NEW`, GPUs of the container by index or UUID; may be repeated"}
	return pauseCommand("resume", "resume what suspend has paused", func(c *cli.Command) taskCall {
		if !c.IsSet("gpu") {
			return resumeTask
		}
		return func(ctx context.Context, tasks taskapi.TTRPCTaskService, id string) error {
			to := map[string]string{gpuinject.AnnotationResumeGPU: strings.Join(c.StringSlice("gpu"), ",")}
			if _, err := tasks.Update(ctx, &taskapi.UpdateTaskRequest{ID: id, Annotations: to}); err != nil {
				return err
			}
			return resumeTask(ctx, tasks, id)
		}
	}, gpu)
}

func resumeTask(ctx context.Context, tasks taskapi.TTRPCTaskService, id string) error {
	_, err := tasks.Resume(ctx, &taskapi.ResumeRequest{ID: id})
	return err
}

func pauseCommand(name, use string, call func(*cli.Command) taskCall, flags ...cli.Flag) *cli.Command {
	return &cli.Command{
		Name: name, Usage: use, ArgsUsage: "CONTAINER",
		Flags: append(append(flags,
			&cli.StringFlag{Name: "pod", Usage: "instead of a container, those of the pod `NAMESPACE/NAME` that give GPUs back"},
		), sourceFlags()...),
		Action: inHost(func(ctx context.Context, c *cli.Command) error {
			if (c.Args().Len() == 1) == c.IsSet("pod") {
				return usage(fmt.Errorf("%s needs one CONTAINER or --pod", name))
			}
			if c.IsSet("gpu") && c.IsSet("pod") {
				return usage(fmt.Errorf("--gpu moves the memory of one CONTAINER: name it, without --pod"))
			}
			if os.Geteuid() != 0 {
				return fmt.Errorf("only root can pause containers: run %s as root", name)
			}
			list, err := pausable(c)
			if err != nil {
				return err
			}
			var done []moved
			for i, r := range list {
				start := time.Now()
				if err = callTask(ctx, r, call(c)); err != nil {
					err = fmt.Errorf("container %s: %w", r.ID, errgrpc.ToNative(err))
					if name == "suspend" {
						return resumeAgain(ctx, list[:i], err)
					}
					break
				}
				done = append(done, newMoved(name, r, time.Since(start)))
			}
			return errors.Join(printMoved(c, done), err)
		}),
	}
}

// moved is what suspend or resume has done for a container.
type moved struct {
	id string
	// bytes is the GPU memory that was moved to the host, or back; 0 if it is unknown.
	bytes uint64
	took  time.Duration
}

// newMoved returns what was done for a container, which r describes as it was before.
func newMoved(name string, r status.Record, took time.Duration) moved {
	m := moved{r.ID, r.SuspendedMemory, took}
	if name == "suspend" {
		_, m.bytes = r.Bundle.Suspended()
	}
	return m
}

// printMoved prints how much GPU memory was moved, how fast, and what is left.
func printMoved(c *cli.Command, list []moved) error {
	w := c.Root().Writer
	var ids []string
	for _, m := range list {
		seconds := m.took.Seconds()
		text := fmt.Sprintf("%s: %s in %.1f s", m.id, map[string]string{"suspend": "suspended", "resume": "resumed"}[c.Name], seconds)
		if m.bytes > 0 {
			mib := float64(m.bytes) / (1 << 20)
			text += fmt.Sprintf(", %.0f MiB of GPU memory moved, %.0f MiB/s", mib, mib/seconds)
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
		ids = append(ids, m.id)
	}
	if len(ids) == 0 {
		return nil
	}
	o := term.New(w)
	if now, err := readStatus(c, nvmlTimeout); err != nil {
		o.Field("what is left is unknown:", 25, term.Yellow, err.Error())
	} else {
		now.PrintLeft(o, procfs.Host, ids)
	}
	return nil
}

// resumeAgain resumes, in reverse order, the containers that were suspended before one failed. It
// adds the outcome for each to err.
func resumeAgain(ctx context.Context, suspended []status.Record, err error) error {
	for _, r := range slices.Backward(suspended) {
		if failed := callTask(ctx, r, resumeTask); failed != nil {
			err = fmt.Errorf("%w; container %s stays suspended: %w", err, r.ID, errgrpc.ToNative(failed))
		} else {
			err = fmt.Errorf("%w; container %s was resumed", err, r.ID)
		}
	}
	return err
}

// pausable finds the containers that the command line names.
func pausable(c *cli.Command) ([]status.Record, error) {
	// Skip containers that were suspended individually, or resumed before another one failed.
	list, err := named(c, c.Args().First(), "container to "+c.Name+": see container.on-pause", func(r status.Record) bool {
		return (r.SuspendsGPU || r.Suspended != nil) && (r.Suspended != nil) == (c.Name == "resume")
	})
	if err == nil && !list[0].SuspendsGPU && (c.Name == "suspend" || list[0].Suspended == nil) {
		return nil, fmt.Errorf("container %s keeps its GPUs when it is paused: see container.on-pause, and create it again", list[0].ID)
	}
	return list, err
}

// named returns the container with this id, or, if it is empty, those of --pod that fit, of which
// there is at least one. none says what the pod has none of.
func named(c *cli.Command, id, none string, fits func(status.Record) bool) ([]status.Record, error) {
	pod := ""
	if id == "" {
		namespace, name, err := podFlag(c)
		if err != nil {
			return nil, err
		}
		pod = namespace + "/" + name
	}
	source, err := readSource(c)
	if err != nil {
		return nil, err
	}
	list := slices.DeleteFunc(source.Read(), func(r status.Record) bool {
		if id == "" {
			return r.PodNamespace+"/"+r.Pod != pod || !fits(r)
		}
		return !isNamed(r, id)
	})
	switch {
	case len(list) == 0 && id == "":
		return nil, fmt.Errorf("pod %.256q has no %s", pod, none)
	case len(list) == 0:
		return nil, fmt.Errorf("no container %.256q has a GPU", id)
	case len(list) > 1 && id != "":
		return nil, fmt.Errorf("%.256q is more than one container", id)
	}
	return list, nil
}

// isNamed reports whether name is the container's id, at least 12 characters of its beginning, or its
// name in Docker.
func isNamed(r status.Record, name string) bool {
	return r.ID == name || len(name) >= 12 && strings.HasPrefix(r.ID, name) || status.DockerName(r.Namespace, r.ID) == name
}

// callTask calls the Task service of the container's shim on the socket that containerd uses.
func callTask(ctx context.Context, r status.Record, call taskCall) error {
	conn, err := dialShim(r.Bundle)
	if err != nil {
		return fmt.Errorf("connect to its shim: %w", err)
	}
	client := ttrpc.NewClient(conn)
	defer func() { _ = client.Close() }()
	ctx, tasks := namespaces.WithNamespace(ctx, r.Namespace), taskapi.NewTTRPCTaskClient(client)
	processes, err := tasks.Pids(ctx, &taskapi.PidsRequest{ID: r.ID})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- call(ctx, tasks, r.ID) }()
	o, start := term.New(os.Stderr), time.Now()
	for {
		select {
		case err := <-done:
			o.Update("")
			return err
		case <-time.After(time.Second):
			text := fmt.Sprintf("%s: %s", r.ID, time.Since(start).Truncate(time.Second))
			if r.PID != 0 { // otherwise its PIDs are of another PID namespace
				text += fmt.Sprintf(", %d MiB in host memory", resident(processes.Processes)>>20)
			}
			o.Update(text)
		}
	}
}

// dialShim connects to the socket of the container's shim, at the address that the daemon recorded.
func dialShim(b status.Bundle) (net.Conn, error) {
	var shim struct{ Address string }
	text, _, err := b.Read("bootstrap.json")
	if err == nil {
		err = json.Unmarshal(text, &shim)
	} else if errors.Is(err, fs.ErrNotExist) { // an older containerd
		text, _, err = b.Read("address")
		shim.Address = string(text)
	}
	if err != nil {
		return nil, err
	}
	path, ok := strings.CutPrefix(shim.Address, "unix://")
	if !ok {
		return nil, fmt.Errorf("%.256q is not the address of a socket", shim.Address)
	}
	socket, st, err := b.Tree.OpenPath(path)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || st.Uid != 0 { // guard: records: socket of root
		return nil, fmt.Errorf("%.256q is not a socket of root", path)
	}
	// The path of a socket is limited to 107 bytes.
	conn, err := net.Dial("unix", hosttree.Path(socket))
	if op := new(net.OpError); errors.As(err, &op) {
		return nil, fmt.Errorf("%.256q: %w", path, op.Err)
	}
	return conn, err
}

// resident returns the host memory of processes in bytes, including GPU memory that was moved
// there.
func resident(list []*task.ProcessInfo) (sum int) {
	for _, p := range list {
		var size, pages int
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.Pid)) // it may have ended
		if _, err := fmt.Sscan(string(text), &size, &pages); err == nil {
			sum += pages * os.Getpagesize()
		}
	}
	return sum
}
