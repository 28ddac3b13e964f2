package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

func limitCommand() *cli.Command {
	return &cli.Command{
		Name: "limit", Usage: "change the limit of GPU memory of a running container, or of those of a pod", ArgsUsage: "[CONTAINER] AMOUNT",
		Description: "AMOUNT is a quantity such as 6Gi, a list such as 6Gi,1=4Gi with one amount for each of the container's GPUs, or none. It is the request too, unless --request is given.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "request", Usage: "reserve `AMOUNT` of that"},
			&cli.StringFlag{Name: "pod", Usage: "instead of a container, those of the pod `NAMESPACE/NAME`"},
		}, sourceFlags()...),
		Action: inHost(func(ctx context.Context, c *cli.Command) error {
			args := c.Args().Slice()
			if c.IsSet("pod") {
				if _, _, err := podFlag(c); err != nil {
					return err
				}
				args = append([]string{""}, args...)
			}
			if len(args) != 2 {
				return usage(errors.New("limit needs one CONTAINER, or --pod, and one AMOUNT"))
			}
			annotations := map[string]string{memlimit.AnnotationLimit: args[1]}
			if c.IsSet("request") {
				annotations[memlimit.AnnotationRequest] = c.String("request")
			}
			if _, err := memlimit.ReadUpdate(annotations); err != nil {
				return usage(err)
			}
			if os.Geteuid() != 0 {
				return errors.New("only root can limit containers: run limit as root")
			}
			return limitContainers(ctx, c, args[0], annotations)
		}),
	}
}

// limitContainers changes the limits of the container id or, if it is empty, of those of the pod.
func limitContainers(ctx context.Context, c *cli.Command, id string, annotations map[string]string) error {
	list, err := named(c, id, "container with a GPU", func(status.Record) bool { return true })
	if err != nil {
		return err
	}
	for _, r := range list {
		err := callTask(ctx, r, func(ctx context.Context, tasks taskapi.TTRPCTaskService, id string) error {
			_, err := tasks.Update(ctx, &taskapi.UpdateTaskRequest{ID: id, Annotations: annotations})
			return err
		})
		if err != nil {
			return fmt.Errorf("container %s: %w", r.ID, errgrpc.ToNative(err))
		}
		if _, err := fmt.Fprintf(c.Root().Writer, "%s: limited to %s\n", r.ID, annotations[memlimit.AnnotationLimit]); err != nil {
			return err
		}
	}
	return nil
}
