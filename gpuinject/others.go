package gpuinject

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// Files of the host that cuFile reads besides the nodes (toolkit.md 6): which disk
// belongs to which device, below dev-root, and its configuration, below driver-root.
const (
	udevDir    = "/run/udev"
	cufileJSON = "/etc/cufile.json"
)

// addOthers adds the nodes of the other classes of devices that the container asks
// for and may have. What it may not have is ignored, and the plan says so: an image
// that asks for more than its pod was given starts with its GPUs.
func (j *Job) addOthers() error {
	if j.taken {
		j.keepClasses()
		return nil
	}
	if j.Request.ChannelsIgnored {
		const reason = "policy.ignore-imex-channels is true"
		j.explain(request.IMEX, "ignored", reason)
		j.ignore(request.IMEX, reason)
	}
	for _, class := range j.Request.Classes {
		if err := j.addClass(class); err != nil {
			return err
		}
	}
	return nil
}

func (j *Job) addClass(class string) error {
	imex := class == request.IMEX
	var channels []int
	if imex && !j.Request.AllChannels {
		channels = j.Request.Channels
	}
	nodes, err := j.inv.Others(class, channels)
	mounted := imex && j.Request.ChannelsMounted || j.namedGrant(class)
	decide := func(g policy.Grant) policy.Others {
		return policy.DecideOthers(j.Config.Policy, j.Container, g, class, nodes, mounted)
	}
	may := decide(j.grant)
	switch {
	case may.All && err != nil:
		return fail(Precondition, "%w", err)
	case may.All:
		may.Nodes = nodes
	case len(may.Nodes) == 0:
		j.explain(class, "ignored", "%s", may.Reason)
		j.ignore(class, may.Reason)
		return nil
	}
	if missing := missingChannels(channels, may.Nodes); len(missing) > 0 {
		j.ignore(class+" "+strings.Join(missing, ","), "not among the channels that were allocated to the container")
	}
	if len(may.Nodes) == 0 {
		j.Plan.note(class + ": this host has no such device")
	}
	if e := j.grant.Enforced; e != nil {
		if would := decide(*e); !would.All && len(would.Nodes) < max(1, len(may.Nodes)) {
			j.audit(class + ": " + would.Reason)
		}
	}
	j.explain(class, "given", "%s", may.Reason)
	j.enterClass(class, may.Nodes)
	return nil
}

// enterClass enters the nodes of a class that the container gets.
func (j *Job) enterClass(class string, nodes []device.Other) {
	j.Plan.Classes = append(j.Plan.Classes, class)
	for _, n := range nodes {
		j.nodes = append(j.nodes, n.Node)
		if class == request.IMEX {
			j.Plan.IMEX = append(j.Plan.IMEX, int(n.Minor))
		}
	}
}

// namedGrant tells whether that a class is named in a list of devices is its grant:
// in accepted mounts, and outside Kubernetes in annotations, neither of which an image
// can make.
func (j *Job) namedGrant(class string) bool {
	return slices.Contains(j.Request.Named, class) && (j.Request.Mounted || j.Request.Annotated && !j.Container.Kubernetes)
}

// missingChannels are the channels that have no node among nodes. A channel is its
// node's minor number.
func missingChannels(channels []int, nodes []device.Other) (missing []string) {
	for _, n := range channels {
		if !slices.ContainsFunc(nodes, func(x device.Other) bool { return int(x.Minor) == n }) {
			missing = append(missing, strconv.Itoa(n))
		}
	}
	return missing
}

// ignore enters a request that is not followed.
func (j *Job) ignore(what, reason string) {
	j.Plan.Ignored = append(j.Plan.Ignored, what+": "+reason)
}

// audit enters what kubernetes = "enforce" would have refused.
func (j *Job) audit(reason string) {
	if j.Plan.Audit == "" {
		j.Plan.Audit = "kubernetes = \"enforce\" would have refused this: " + reason
	} else {
		j.Plan.Audit += "; " + reason
	}
}

// addClassFiles adds the files that go with the nodes, as far as the host has them.
// They are bound read-only, like every data file of the driver.
func (j *Job) addClassFiles() {
	if j.taken || !slices.Contains(j.Plan.Classes, request.GDS) {
		return
	}
	data := slices.Clone(j.files.Data)
	for _, f := range []struct {
		root, name string
		directory  bool
	}{{j.Config.Host.DevRoot, udevDir, true}, {j.Config.Host.DriverRoot, cufileJSON, false}} {
		host, err := driver.Locate(f.root, f.name, f.directory)
		switch {
		case err == nil:
			data = append(data, driver.File{Path: host, Dest: f.name, Direct: true})
		case !errors.Is(err, fs.ErrNotExist):
			j.Plan.note(fmt.Sprintf("gds: %v", err))
		}
	}
	j.files.Data = data
}
