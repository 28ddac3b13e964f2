package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe/server"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// nvmlTimeout is how long NVML may take. Tests use a shorter time.
var nvmlTimeout = probe.NVMLTimeout

func probeCommand() *cli.Command {
	return &cli.Command{
		Name:  "probe",
		Usage: "ask NVML or the kubelet as the shim does, and print the answer",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "live", Usage: "ask NVML for the state of the GPUs too"},
			&cli.StringFlag{Name: "pod", Usage: "ask the kubelet instead what it allocated to the pod `NAMESPACE/NAME`"},
			&cli.StringFlag{Name: "socket", Usage: "the kubelet's PodResources `SOCKET`", Value: config.Default().Policy.KubeletSocket},
			&cli.DurationFlag{Name: "timeout", Usage: "give up on NVML after `TIME`", Value: nvmlTimeout},
			&cli.BoolFlag{Name: "questions", Usage: "the shim's questions as JSON in the standard input", Hidden: true},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			q, err := probeQuestions(c)
			if err != nil {
				return usage(err)
			}
			answer := asker(c)
			if c.IsSet("questions") || q.Pod != nil {
				answer = func(q probe.Questions) probe.Answers { return server.Answer(ctx, q) }
			}
			a := answer(q)
			if err := term.JSON(c.Root().Writer, a); err != nil || c.IsSet("questions") {
				return err
			}
			if text := cmp.Or(a.FactsError, a.LiveError, a.PodError); text != "" {
				if os.Geteuid() != 0 {
					text = "not run as root: " + text
				}
				return errors.New(text)
			}
			return nil
		},
	}
}

func probeQuestions(c *cli.Command) (q probe.Questions, err error) {
	if c.IsSet("questions") {
		return probe.ReadQuestions(c.Root().Reader)
	}
	if c.IsSet("pod") {
		namespace, name, err := podFlag(c)
		if err != nil {
			return q, err
		}
		q.Pod = &probe.Pod{Socket: c.String("socket"), Namespace: namespace, Name: name}
		return q, nil
	}
	return probe.Questions{Config: c.String("config"), Facts: !c.Bool("live"), Live: c.Bool("live"), Timeout: c.Duration("timeout")}, nil
}

// askingProgram is the nvidia-shimctl that runs the probe.
var askingProgram = "/proc/self/exe"

// asker returns a function that asks as the shim does, in a separate process.
func asker(c *cli.Command) func(probe.Questions) probe.Answers {
	return func(q probe.Questions) probe.Answers {
		q.Timeout = cmp.Or(q.Timeout, nvmlTimeout)
		q.Config = probeConfig(c)
		return probe.Ask(func() (string, error) { return askingProgram, nil }, probe.StartProcess, q)
	}
}

// probeConfig returns --config for the probe, which runs in another directory.
func probeConfig(c *cli.Command) string {
	name := c.String("config")
	if abs, err := filepath.Abs(name); err == nil && name != "" {
		return abs
	}
	return name
}

func askLive(c *cli.Command, limit time.Duration, cgroups []string) (live nvml.Snapshot, err error) {
	a := asker(c)(probe.Questions{Live: true, Cgroups: cgroups, Timeout: limit})
	if a.LiveError != "" {
		return live, errors.New(a.LiveError)
	}
	return live, json.Unmarshal(a.Live, &live)
}
