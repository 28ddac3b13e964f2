package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubelet"
)

// probeTimeout is how long a probe waits by itself; the shim has a limit of its own.
const probeTimeout = 3 * time.Second

// askKubelet asks as the shim does, in this very process.
func askKubelet(socket, namespace, name string) (policy.Allocation, error) {
	if _, err := os.Lstat(socket); errors.Is(err, os.ErrNotExist) {
		return policy.Allocation{}, policy.ErrNoKubelet
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	pod, err := kubelet.Allocated(ctx, socket, namespace, name)
	return policy.Allocation(pod), err
}

func probeCommand() *cli.Command {
	return &cli.Command{
		Name:  "probe",
		Usage: "answer a question of the shim in a process of its own, as JSON",
		Commands: []*cli.Command{nvmlCommand(), cdiCommand(), {
			Name:  "pod-resources",
			Usage: "what the kubelet allocated to a pod",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "socket", Usage: "the kubelet's PodResources `SOCKET`", Value: "/var/lib/kubelet/pod-resources/kubelet.sock"},
				&cli.StringFlag{Name: "namespace", Usage: "the pod's `NAMESPACE`"},
				&cli.StringFlag{Name: "pod", Usage: "the pod's `NAME`"},
			},
			Action: func(ctx context.Context, c *cli.Command) error {
				if c.String("namespace") == "" || c.String("pod") == "" {
					return usage(errors.New("--namespace and --pod say which pod"))
				}
				ctx, cancel := context.WithTimeout(ctx, probeTimeout)
				defer cancel()
				pod, err := kubelet.Allocated(ctx, c.String("socket"), c.String("namespace"), c.String("pod"))
				if err != nil {
					return err
				}
				return printJSON(c.Root().Writer, pod)
			},
		}},
	}
}
