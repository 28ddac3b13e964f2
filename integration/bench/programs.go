package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// programs lists what containerd and its descendants execute from the create call
// of a container until it runs, for each variant. They are counted by strace, under
// a containerd of their own, because nothing is timed there.
func programs(ctx context.Context, h *testenv.Lifetime, o testenv.Options, imageTars []string, variants ...Variant) (map[string][]string, error) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		return nil, fmt.Errorf("strace is not installed")
	}
	dir, err := os.MkdirTemp("", "nvtrace")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	log := filepath.Join(dir, "trace")
	// The other containerd runs still, and has its state directory locked.
	o.StateDir = ""
	// -D: the tracer is a grandchild, containerd keeps its process id.
	o.Wrapper = []string{strace, "-D", "-f", "-qq", "-s", "256", "-e", "trace=execve,execveat", "-e", "signal=none", "-o", log}
	env := testenv.Start(h, o)
	defer env.Stop(h)
	for _, tar := range imageTars {
		env.Import(h, tar)
	}
	c, err := dial(env)
	if err != nil {
		return nil, err
	}
	defer c.close()
	b := &bench{Lifetime: h, env: env, client: c}
	out := map[string][]string{}
	for _, v := range variants {
		// The first container of a runtime may teach containerd or the shim something.
		for range 2 {
			before, err := executed(log)
			if err != nil {
				return nil, err
			}
			t, err := b.started(ctx, v)
			if err != nil {
				return nil, err
			}
			time.Sleep(4 * settle) // the trace is written by another process
			after, err := executed(log)
			if err != nil {
				return nil, err
			}
			out[v.Name] = after[len(before):]
			if err := t.remove(ctx); err != nil {
				return nil, err
			}
			time.Sleep(4 * settle)
		}
	}
	return out, nil
}

// A line of strace is "PID execve("PATH", ["ARG0", …], ENV) = 0", or the same in
// two parts with other lines in between. ARG1 and so on tell the commands of shim
// and runc apart.
var (
	execCall = regexp.MustCompile(`^(\d+) +execve(?:at)?\(`)
	execDone = regexp.MustCompile(`^(\d+) +(?:execve(?:at)?\(|<\.\.\. execve(?:at)? resumed>).*= 0$`)
	execArgs = regexp.MustCompile(`\[("(?:[^"\\]|\\.)*"(?:, "(?:[^"\\]|\\.)*")*)`)
)

// executed lists the programs of a trace, by base name and command.
func executed(log string) ([]string, error) {
	data, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	return parseTrace(data), nil
}

func parseTrace(trace []byte) []string {
	var programs []string
	begun := map[string]string{}
	for raw := range bytes.Lines(trace) {
		line := strings.TrimRight(string(raw), "\n")
		if m := execCall.FindStringSubmatch(line); m != nil {
			begun[m[1]] = commandOf(line)
		}
		if m := execDone.FindStringSubmatch(line); m != nil {
			programs = append(programs, begun[m[1]])
		}
	}
	return programs
}

// commandOf is "runc create" of an execve of runc with its flags before and after.
func commandOf(line string) string {
	m := execArgs.FindStringSubmatch(line)
	if m == nil {
		return "?"
	}
	args := strings.Split(strings.ReplaceAll(m[1], `"`, ""), ", ")
	name := filepath.Base(args[0])
	for _, arg := range args[1:] {
		switch arg {
		case "start", "create", "init", "delete", "features", "version", "state", "-info":
			return name + " " + arg
		}
	}
	return name
}
