package gpuinject

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// Programs that NVIDIA's CDI specifications have as hooks: nvidia-cdi-hook <what>, or
// nvidia-ctk hook <what>.
const (
	cdiHook = "nvidia-cdi-hook"
	ctkHook = "nvidia-ctk"
)

func isCDIHook(h specs.Hook) bool {
	return hookIs(h, cdiHook) || hookIs(h, ctkHook) && slices.Contains(h.Args, "hook")
}

// editedByCDI tells whether a CDI specification of NVIDIA's was applied to the
// container: by containerd for CDIDevices of CRI, by docker or ctr for --device, for a
// claim of the DRA driver. Its hooks are there, and nodes of the driver. Without
// hooks, whoever wrote the specification needs nothing done.
func editedByCDI(spec *bundle.Spec) bool {
	return spec.Linux != nil && findHook(spec.Hooks, isCDIHook) != nil &&
		slices.ContainsFunc(spec.Linux.Devices, func(d specs.LinuxDevice) bool {
			return (d.Type == "c" || d.Type == "u") && isDriverNode(path.Clean(d.Path))
		})
}

// driverNodes begin the names of the driver's nodes: of PCI GPUs, of WSL2, and of a
// Tegra, which need not have one of the first.
var driverNodes = []string{"/dev/nvidia", "/dev/dxg", "/dev/nvhost-", "/dev/nvmap", "/dev/nvgpu/"}

func isDriverNode(name string) bool {
	return slices.ContainsFunc(driverNodes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// takeOver makes the devices that CDI put into the specification request and grant.
// Nodes count by their numbers, whatever they are called.
func (j *Job) takeOver() error {
	if err := j.checkMemoryLimit(); err != nil {
		return err
	}
	set, err := j.inv.Given(j.Container.Nodes)
	if err != nil {
		return fail(Precondition, "%s: %w", j.Request.Reason, err)
	}
	if j.inv.Platform == device.Tegra {
		if set, err = j.givenTegra(); err != nil {
			return err
		}
	}
	for _, name := range []string{"config", "monitor"} {
		// A host without MIG has no such right.
		if c, err := j.inv.Management(name); err == nil && j.hasCapability(c) {
			set.Manage = append(set.Manage, c)
			j.Plan.MIGRights = append(j.Plan.MIGRights, name)
		}
	}
	j.set = set
	j.nameMIG()
	j.gpus = j.inv.Visible(j.set)
	names := j.set.Names()
	j.Request.Devices, j.Plan.Asked = names, names
	j.Plan.Grant = "taken over from CDI: no GPU"
	if len(names) > 0 {
		j.Plan.Grant = "taken over from CDI: " + strings.Join(names, ",")
	}
	j.grant = policy.Grant{Set: set, Reason: j.Plan.Grant}
	j.explainGrant()
	j.explainDevices()
	return nil
}

// memoryHook is what NVIDIA's hook is told that limits the GPU memory of a container,
// by memoryVariables (nvidia-container-toolkit 1.20).
const memoryHook = "apply-cuda-memory-limits"

var memoryVariables = []string{"NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"}

// checkMemoryLimit refuses a container that would lose a limit with NVIDIA's hook.
func (j *Job) checkMemoryLimit() error {
	limits := func(h specs.Hook) bool { return isCDIHook(h) && slices.Contains(h.Args, memoryHook) }
	if findHook(j.bundle.Spec.Hooks, limits) == nil {
		return nil
	}
	for _, entry := range j.bundle.Spec.Process.Env {
		if name := memoryVariable(entry); name != "" {
			return fail(Denied, "%s limits GPU memory by a hook of NVIDIA's CDI specification, which this runtime does not run: remove the variable, or start the container with another runtime", request.Quote(name))
		}
	}
	return nil
}

// memoryVariable is the name of an entry of an environment that limits GPU memory.
func memoryVariable(entry string) string {
	name, _, _ := strings.Cut(entry, "=")
	if slices.Contains(memoryVariables, name) {
		return name
	}
	return ""
}

// ignoreMemoryLimit tells of a limit that NVIDIA's default mode would set by a hook.
func (j *Job) ignoreMemoryLimit() {
	for _, entry := range j.bundle.Spec.Process.Env {
		if name := memoryVariable(entry); name != "" {
			j.ignore(name, "this runtime does not limit GPU memory")
		}
	}
}

// givenTegra is the GPU of a Tegra where the specification has nodes of its lists.
func (j *Job) givenTegra() (set device.Set, err error) {
	if err := j.findFiles(); err != nil {
		return set, err
	}
	nodes, err := j.inv.NodesAt(j.files.Nodes)
	if err != nil {
		return set, fail(Precondition, "%s: %w", j.Request.Reason, err)
	}
	if slices.ContainsFunc(nodes, func(n device.Node) bool { return j.has(policy.Number{Major: int64(n.Major), Minor: int64(n.Minor)}) }) {
		set.GPUs = j.inv.GPUs
	}
	return set, nil
}

// hasCapability tells whether the specification has the node of a right.
func (j *Job) hasCapability(c device.Capability) bool {
	nodes, err := j.inv.Nodes(device.Set{Manage: []device.Capability{c}}, nil)
	return err == nil && slices.ContainsFunc(nodes, func(n device.Node) bool {
		return strings.HasPrefix(n.Path, "/dev/nvidia-caps/") && j.has(policy.Number{Major: int64(n.Major), Minor: int64(n.Minor)})
	})
}

// checkAnnotations passes over what a pod's annotations name where it was not all
// allocated to the container: their author may not have meant this runtime, and what
// was allocated is given as if they were not there.
func (j *Job) checkAnnotations() error {
	if j.otherwise == nil {
		return nil
	}
	// Nobody has to be asked what an id means of which nothing can be granted.
	ok := len(j.Request.Devices) == 0 || !j.grant.Nothing()
	for _, id := range j.Request.Devices {
		if !ok {
			break
		}
		set, err := j.find([]string{id})
		if errors.Is(err, device.ErrFacts) {
			// Not to be taken for another's: it may be the very device that was allocated.
			return fail(Precondition, "%s: %w", j.Request.Reason, err)
		}
		ok = err == nil && (j.grant.AllowsAll(set) || id == request.All)
	}
	if ok {
		return nil
	}
	j.ignore(j.Request.Reason, "not what was allocated to the container: "+j.grant.Reason)
	switch {
	case j.otherwiseErr != nil:
		return j.otherwiseErr
	case !j.otherwise.Driver:
		return j.notGranted(j.grant.Reason)
	}
	j.Request = *j.otherwise
	j.plan()
	return nil
}

// has tells whether the specification that containerd handed over has a node.
func (j *Job) has(n policy.Number) bool { return slices.Contains(j.Container.Nodes, n) }

// keptClasses are the classes whose nodes NVIDIA's CDI specifications have. RDMA
// adapters are handed out by plugins of other vendors as well: whose they are cannot
// be told, and they need nothing done.
var keptClasses = []string{request.IMEX, request.GDS, request.GDRCopy, request.NVSwitch}

// keepClasses enters the nodes of other classes that CDI put into the specification.
// Their files are mounted already.
func (j *Job) keepClasses() {
	for _, class := range keptClasses {
		// What is not as it should be on this host is not ours to give; it stays as it is.
		nodes, _ := j.inv.Others(class, nil)
		nodes = slices.DeleteFunc(nodes, func(n device.Other) bool { return !j.has(policy.Number{Major: int64(n.Major), Minor: int64(n.Minor)}) })
		if len(nodes) > 0 {
			j.explain(class, "given", "CDI put its nodes into the specification")
			j.enterClass(class, nodes)
		}
	}
}

// undoCDI takes out of the specification what CDI put in and is done here: its hooks,
// the mounts of driver files, and device rules that allow mknod.
func (j *Job) undoCDI() error {
	isOurs := func(r specs.LinuxDeviceCgroup) bool {
		return r.Allow && r.Type == "c" && r.Major != nil && r.Minor != nil && strings.Contains(r.Access, "m") &&
			slices.ContainsFunc(j.nodes, func(n device.Node) bool { return *r.Major == int64(n.Major) && *r.Minor == int64(n.Minor) })
	}
	for _, m := range j.bundle.Spec.Mounts {
		if j.cdiMount(m) && isSocketMount(m) {
			j.Plan.note("not mounted: " + m.Destination + ", which CDI gives every container; see container.sockets")
		}
	}
	_, err := j.bundle.Apply(bundle.Edits{RemoveRule: isOurs, RemoveMount: j.cdiMount})
	if err != nil {
		return fail(Invalid, "%w", err)
	}
	return nil
}

// cdiMount tells a mount that NVIDIA's CDI specification made: a file of this host's
// driver, at the place that nvidia-ctk gives it, with the options that it writes
// (toolkit.md 4.2). A volume of the same file that a user asks for has other options.
func (j *Job) cdiMount(m specs.Mount) bool {
	if !j.taken || !path.IsAbs(m.Source) || !hasAll(m.Options, "nosuid", "nodev") || !slices.Contains(m.Options, "bind") && !slices.Contains(m.Options, "rbind") {
		return false
	}
	source, dest := path.Clean(m.Source), path.Clean(m.Destination)
	if isSocketMount(m) {
		if dest == mpsDir && j.ownMPS() {
			return false
		}
		return inRoot(source, j.Config.Host.DriverRoot, j.all.RealRoot) == dest || source == dest
	}
	if !slices.Contains(m.Options, "ro") {
		return false
	}
	below := inRoot(source, j.Config.Host.DriverRoot, j.all.RealRoot)
	if path.Base(source) != path.Base(dest) {
		return false
	}
	switch info, err := os.Stat(source); {
	case err != nil:
		// Of a driver that is gone: runc would fail for it.
		return below == dest && driver.NamesLibrary(path.Base(source))
	case below == dest && isFirmware(source):
		return true
	case below == dest && strings.HasSuffix(source, ".so."+j.all.Version) && j.searched(path.Dir(source)):
		return true
	default:
		return j.isDriverFile(info, below, dest)
	}
}

// inRoot is a host path as it is in the driver root; itself where it is elsewhere.
func inRoot(name string, roots ...string) string {
	for _, root := range roots {
		if rest, ok := strings.CutPrefix(name, path.Clean(root)+"/"); ok && root != "/" && root != "" {
			return "/" + rest
		}
	}
	return name
}

// isSocketMount tells a mount of a daemon's socket: read-write, and nothing in it can
// be executed.
func isSocketMount(m specs.Mount) bool {
	switch path.Clean(m.Destination) {
	case "/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket",
		"/run/nvidia-fabricmanager/socket", "/var/run/nvidia-fabricmanager/socket", mpsDir:
		return hasAll(m.Options, "nosuid", "nodev", "noexec")
	}
	return false
}

// isFirmware tells firmware of the driver, which the kernel loads and no container.
func isFirmware(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, "gsp") && strings.HasSuffix(base, ".bin") && strings.Contains(name, "/nvidia/")
}

// searched tells whether driver files are looked for in a directory.
func (j *Job) searched(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(j.all.Searched, func(have string) bool {
		other, err := os.Stat(have)
		return err == nil && os.SameFile(info, other)
	})
}

// isDriverFile tells whether a file is one that was found here, mounted where it
// belongs: where it is on the host, a program in /usr/bin, a data file in its place.
func (j *Job) isDriverFile(info os.FileInfo, below, dest string) bool {
	is := func(name string) bool {
		have, err := os.Stat(name)
		return err == nil && os.SameFile(info, have)
	}
	for _, l := range j.all.Libraries {
		if below == dest && is(l.Path) {
			return true
		}
	}
	for _, b := range j.all.Binaries {
		if (below == dest || dest == filepath.Join("/usr/bin", b.Name)) && is(b.Path) {
			return true
		}
	}
	for _, d := range j.all.Data {
		if (below == dest || dest == d.Dest) && is(d.Path) {
			return true
		}
	}
	return false
}

func hasAll(options []string, want ...string) bool {
	return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(options, w) })
}
