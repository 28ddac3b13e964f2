package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// livePlan returns what the shim recorded about a container of this host. Without a record it goes
// through the shim's own steps: the shim leaves none about a container that gets no GPU.
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
	// The shim would have removed the hooks.
	if plan.GPU || len(plan.RemovedHooks) > 0 || errors.As(err, new(*gpuinject.Error)) {
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
	all := status.Bundles(procfs.Host, status.StateDirs)
	name := c.String("container")
	found, what := byID(all, name), fmt.Sprintf("container %.256q", name)
	if c.IsSet("pod") {
		namespace, pod, ok := strings.Cut(c.String("pod"), "/")
		if !ok || namespace == "" || pod == "" {
			return b, usage(fmt.Errorf("--pod %.256q is not NAMESPACE/NAME", c.String("pod")))
		}
		found, what = byPod(all, namespace, pod, name), strings.TrimPrefix(fmt.Sprintf("%s of pod %.256q", what, c.String("pod")), `container "" of `)
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return b, fmt.Errorf("%s is not on this host (with a GPU: %s); if it was refused, the reason is in the pod's events or the output of docker or ctr, and in containerd's log",
			what, cmp.Or(names(slices.DeleteFunc(all, hasNoRecord)), "none"))
	}
	return b, fmt.Errorf("%s may be %s: choose with --container", what, names(found))
}

// byID finds a container by ID or NAMESPACE/ID, of which the end may be left out.
func byID(all []status.Bundle, name string) (found []status.Bundle) {
	var begin []status.Bundle
	for _, b := range all {
		id := b.ID
		if strings.Contains(name, "/") {
			id = b.Namespace + "/" + b.ID
		}
		if id == name {
			found = append(found, b)
		} else if name != "" && strings.HasPrefix(id, name) {
			begin = append(begin, b)
		}
	}
	if len(found) > 0 {
		return found
	}
	return begin
}

// byPod finds the containers of a pod; without a name those with a GPU, if there are any.
func byPod(all []status.Bundle, namespace, pod, name string) (found []status.Bundle) {
	for _, b := range all {
		who, err := b.Container()
		if err == nil && !who.Sandbox && who.Namespace == namespace && who.Pod == pod && (name == "" || who.Name == name) {
			found = append(found, b)
		}
	}
	if given := slices.DeleteFunc(slices.Clone(found), hasNoRecord); name == "" && len(given) > 0 {
		return given
	}
	return found
}

func hasNoRecord(b status.Bundle) bool {
	_, err := b.Plan()
	return err != nil
}

// names lists containers as --container takes them, with the pod and the name that --pod goes with.
func names(list []status.Bundle) string {
	var texts []string
	for _, b := range list {
		text := b.Namespace + "/" + b.ID
		if who, err := b.Container(); err == nil && who.Name != "" {
			text += fmt.Sprintf(" (%.256q)", who.Namespace+"/"+who.Pod+"/"+who.Name)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}
