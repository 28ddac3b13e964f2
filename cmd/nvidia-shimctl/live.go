package main

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// livePlan returns what the shim recorded about a container of this host. Without a record it runs
// the shim's own steps: the shim writes none for a container that gets no GPU.
func livePlan(c *cli.Command) (gpuinject.Plan, error) {
	if slices.ContainsFunc([]string{"bundle", "env", "mount", "annotation", "privileged", "rootfs"}, c.IsSet) {
		return gpuinject.Plan{}, usage(errors.New("--pod and --container cannot be combined with flags that describe a container"))
	}
	b, err := findBundle(c)
	if err != nil {
		return gpuinject.Plan{}, err
	}
	plan, err := b.Plan()
	if !errors.Is(err, fs.ErrNotExist) {
		return plan, err
	}
	container, err := gpuinject.Examine(b.Dir, loader(c))
	if err == nil {
		plan, err = planOf(c, container)
	}
	// The shim would have left a record, removed the hooks or refused the container.
	if plan.GPU || len(plan.RemovedHooks) > 0 || errors.As(err, new(*verdict.Error)) {
		plan, err = gpuinject.Plan{Reason: "it has no record of this shim: another runtime made it, or it is being created"}, nil
	}
	who, _ := b.Container() // Examine has read it
	plan.Container = &gpuinject.PlanContainer{ID: b.ID, Namespace: b.Namespace, PodNamespace: who.Namespace, Pod: who.Pod, Name: who.Name}
	return plan, err
}

// findBundle finds the one container that --pod and --container name.
func findBundle(c *cli.Command) (b status.Bundle, err error) {
	if os.Geteuid() != 0 {
		return b, errors.New("only root can read the bundles of containers: run plan as root")
	}
	namespace, pod := "", ""
	if c.IsSet("pod") {
		if namespace, pod, err = podFlag(c); err != nil {
			return b, err
		}
	}
	source, err := readSource(c)
	if err != nil {
		return b, err
	}
	return status.Find(source.Bundles(), namespace, pod, c.String("container"))
}
