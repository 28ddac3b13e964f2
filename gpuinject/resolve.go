package gpuinject

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/grant"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// Resolve decides everything that will be done for a container that is not Plain and whose image is
// mounted at root. It changes only what the shim itself keeps under its state directory, and not
// even that if the state is read-only. With an error, the Plan contains the decisions that led to
// it.
func Resolve(c Container, root *image.Root, ask question.Ask) (Plan, error) {
	hooks, err := place.RemoveHooks(c.toPlace(), c.Config.Policy.ForeignHooks == config.Refuse)
	var h host.Host
	var g grant.Grant
	var driver, mask place.Changes
	if err == nil && c.Asks {
		h, g, err = findGrant(c, ask)
		if err == nil && !g.Without {
			driver, err = giveDriver(c, root, h, g)
		}
	}
	if err == nil && (!c.Asks || g.Without) {
		mask, err = maskWithoutGPU(c, root)
	}
	all, err := place.Add(err, place.Changes{Log: describeRequest(c)}, hooks, place.Changes{Log: g.Log}, driver, mask)
	return newPlan(c, h, g, all), err
}

// describeRequest records what the container asks for.
func describeRequest(c Container) (log verdict.Log) {
	decision := "asks for the driver"
	if !c.Asks {
		decision = "does not ask for the driver"
	}
	log.Decide("container", decision, "%s", c.Reason)
	for _, o := range c.Request.Overridden {
		log.Decide(o.What, "not followed", "%s", o.Reason)
	}
	switch {
	case c.IdleAfter > 0:
		log.Decide("idle", fmt.Sprintf("suspended after %s without GPU work", c.IdleAfter), "annotation %s, policy.suspend-idle-after", annotationIdle)
	case c.Asks && c.Bundle.Spec.Annotations[annotationIdle] != "":
		log.Ignore(annotationIdle, "policy.suspend-idle-after is not set")
	}
	return log
}

// findGrant decides which devices of this host the container gets, or whether it starts without the
// driver.
func findGrant(c Container, ask question.Ask) (host.Host, grant.Grant, error) {
	h, err := host.Discover(c.Config.Host)
	if errors.Is(err, device.ErrNoDriver) && grant.StartsWithoutDriver(c.toGrant()) {
		return host.Host{}, grant.Grant{Without: true, May: policy.Allowed{Reason: "no GPU can have been allocated: " + err.Error()}}, nil
	}
	if err != nil {
		return host.Host{}, grant.Grant{}, verdict.Precondition("%s: %w", c.Request.Reason, err)
	}
	sick, log := readHealth(c.Config, h)
	if c.Config.Policy.Health == config.Refuse {
		h = withholdSick(h, sick)
	}
	g, err := grant.Decide(c.toGrant(), h, ask)
	log.Join(g.Log)
	warnOfSick(sick, g.GPUs, &log)
	g.Log = log
	return h, g, err
}

// giveDriver decides how the container gets the driver with the devices of its grant.
func giveDriver(c Container, img *image.Root, h host.Host, g grant.Grant) (place.Changes, error) {
	found, err := driverFiles(c, h, g.Request.Capabilities)
	if err != nil {
		return place.Changes{}, err
	}
	if err := found.Check(g.Request.Capabilities); err != nil {
		return place.Changes{}, verdict.Precondition("%w", h.AdviseFiles(err))
	}
	pc, files := c.toPlace(), found.For(g.Request.Capabilities)
	nodes, err := g.Nodes(c.toGrant(), h, found)
	chosen := place.Changes{Nodes: nodes.List, Classes: nodes.Classes, IMEX: nodes.IMEX}
	for _, m := range found.Missing {
		if capability, name, _ := strings.Cut(m, ": "); g.Request.Has(capability) {
			chosen.Note("%s: this host's driver has no %s", capability, name)
		}
	}
	for _, r := range found.RefusedFor(g.Request.Capabilities) {
		chosen.Note("%s is not given: it %s", r.Path, r.Reason)
	}
	chosen.Join(nodes.Log)
	if err != nil {
		return chosen, err
	}
	data := place.ClassFiles(pc, nodes.Classes, &chosen.Log)
	files.Data = slices.Concat(files.Data, data)
	limits, err := limitMemory(c, h, g)
	if err != nil {
		return place.Add(err, chosen, limits)
	}
	mask, err := place.Mask(pc, h.DriverVersion, g.GPUs, g.Set, nodes.Classes)
	if err != nil {
		return place.Add(err, chosen, limits, mask)
	}
	removed := place.RemoveReplaced(pc, found, nodes.List)
	root, err := place.ReadMounts(pc, img, removed.Edits.RemoveMount)
	var placed place.Changes
	if err == nil {
		given := place.Given{Request: g.Request, Set: g.Set, GPUs: g.GPUs, Nodes: nodes.List, Files: files, Masked: mask.Proc.Masked}
		placed, err = place.Files(pc, root, given, h.CompatDriver)
	}
	if img.Err() != nil {
		err = verdict.Internal("read the image: %w", img.Err())
	}
	return place.Add(err, chosen, limits, mask, removed, placed)
}

// maskWithoutGPU decides what is done for a container that gets no GPU from the shim. If its
// specification has nodes of the driver anyway, for example from a device plugin, the container
// gets the mask, which shows the GPUs of these nodes: a pod's author can override the plugin's
// value with NVIDIA_VISIBLE_DEVICES=void.
func maskWithoutGPU(c Container, img *image.Root) (ch place.Changes, err error) {
	if !c.Input.Container.DriverNodes {
		return ch, nil // the usual case: the container asks and is granted nothing
	}
	h, err := host.Discover(c.Config.Host)
	if errors.Is(err, device.ErrNoDriver) {
		return ch, nil
	}
	var set device.Set
	if err == nil {
		set, err = h.Given(c.Input.Container.Nodes)
	}
	if err != nil {
		return ch, verdict.Precondition("the container's specification has nodes of the NVIDIA driver: %w", err)
	}
	pc := c.toPlace()
	if ch, err = place.Mask(pc, h.DriverVersion, h.Visible(set), set, nil); err != nil || !ch.Proc.Masked {
		return ch, err
	}
	root, err := place.ReadMounts(pc, img, nil)
	if err != nil {
		return ch, err
	}
	return ch, place.CheckProc(root, true)
}

// filesName is the file in the state directory that holds the list of the driver's files, and
// shortName the one with what containers with these capabilities need of it.
const filesName = "driver.json"

func shortName(caps []string) string { return "driver-" + strings.Join(caps, "-") + ".json" }

// driverFiles returns the driver's files that c needs for the capabilities: from the list kept in
// the state directory for these capabilities or, if it is not fresh, from the list of all files.
func driverFiles(c Container, h host.Host, caps []string) (driver.Files, error) {
	st, err := state.Open(c.Config.Host.StateDir, c.Config.Host.ReadOnlyState)
	if err != nil {
		return driver.Files{}, verdict.Precondition("%w", err)
	}
	if place.ReplacesMounts(c.toPlace()) {
		return allDriverFiles(st, h)
	}
	var short driver.Files
	if st.Load(shortName(caps), &short) && slices.Equal(short.Only, caps) && short.Fresh(h.Config, h.DriverVersion) {
		return short, nil
	}
	files, err := allDriverFiles(st, h)
	if err != nil || files.Replaced != "" {
		return files, err
	}
	short = files.Short(caps)
	if err := st.Store(shortName(caps), &short); err != nil {
		return driver.Files{}, verdict.Internal("keep the list of driver files: %w", err)
	}
	return short, nil
}

// allDriverFiles returns the list of all files of the driver: the list kept in the state directory
// if it is fresh, otherwise the result of a new search, which is then kept. Between an upgrade of the
// driver's packages and the reboot, the host has only files of a driver that is not loaded: then the
// kept list is returned as Replaced, because a view may still hold the loaded driver's files.
func allDriverFiles(st *state.State, h host.Host) (driver.Files, error) {
	var kept driver.Files
	if st.Load(filesName, &kept) && kept.Fresh(h.Config, h.DriverVersion) {
		return kept, nil
	}
	files, err := h.DriverFiles()
	if err != nil {
		return driver.Files{}, verdict.Precondition("%w", err)
	}
	if kept.Version != "" && kept.Version == h.DriverVersion && kept.Root == files.Root && len(files.Others) > 0 {
		for _, c := range []string{config.Compute, config.Utility} { // an upgrade replaces one package after the other
			if err := files.Check([]string{c}); err != nil && kept.Check([]string{c}) == nil {
				kept.Replaced = err.Error()
				return kept, nil
			}
		}
	}
	if err := st.Store(filesName, &files); err != nil {
		return driver.Files{}, verdict.Internal("keep the list of driver files: %w", err)
	}
	return files, nil
}
