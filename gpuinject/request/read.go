package request

import (
	"bytes"
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
)

// imexDir is the place of IMEX channels in the device list: <dir>/imex/<id>.
const imexDir = "imex/"

// Annotation keys that carry CDI names: the prefix that the CDI specification gives to container
// engines, and NVIDIA's. The latter alone and with two suffixes is a key of NVIDIA's NRI plugin, for
// a pod or for one container of it; with any other it comes from a device plugin whose
// --cdi-annotation-prefix GPU Operator sets to it.
const (
	annotationCDI = "cdi.k8s.io/"
	annotationNRI = "nvidia.cdi.k8s.io"
)

// Input holds everything in a specification that can ask for GPUs, parsed once. It does not depend
// on the configuration.
type Input struct {
	Container Container
	// Env holds the variables of the contract. The last of repeated variables wins, as in every
	// shell and in NVIDIA's stack, though not in getenv(3). An entry without "=" is not a variable
	// and is skipped; NVIDIA's stack fails such a container, even if it has nothing to do with
	// GPUs.
	Env map[string]string
	// envErr names the first variable of the contract that is too long: a request is refused, before
	// a list is split.
	envErr error
	// EditedByCDI is true if a CDI specification of NVIDIA's or of nvidia-shimctl was applied: the
	// configuration contains NVIDIA's hooks or EnvCDI, and nodes of the driver.
	EditedByCDI bool
	// NVIDIAHooks is true if NVIDIA's hooks are in the specification.
	NVIDIAHooks bool
	// Memory is what the container says about the memory of its GPUs.
	Memory memlimit.Asked

	// What mounts and annotations name; channels come from mounts. An error is that of the first
	// invalid item.
	mounted, channels, annotated          list
	mountedErr, channelsErr, annotatedErr error
	// voided is true if VoidMount is among the mounts: then mounted is empty, and the variable
	// decides (NVIDIA/nvidia-container-toolkit 1.20.2, internal/config/image/cuda_image.go,
	// visibleDevicesFromMounts). Mounts of channels still count.
	voided bool
	// swarm is true if the environment has a resource of Docker swarm, of whatever kind.
	swarm bool
}

// Read reads what a container's specification asks for.
func Read(spec *bundle.Spec) Input {
	s := Input{
		Container: identify(spec), Env: map[string]string{},
		NVIDIAHooks: slices.ContainsFunc(Hooks(spec.Hooks), IsNVIDIAHook),
	}
	for _, entry := range spec.Process.Env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || !ofContract(name) {
			continue
		}
		if len(entry) > maxText {
			s.envErr = cmp.Or(s.envErr, fmt.Errorf("the variable %s has %d bytes, with which no program can be started: at most %d", Quote(name), len(entry), maxText))
		}
		s.Env[name] = value
		s.swarm = s.swarm || strings.HasPrefix(name, config.SwarmPrefix)
	}
	s.EditedByCDI = editedByCDI(spec, s.Env)
	s.Memory = memlimit.Read(s.Env, spec.Annotations, s.Container.Name)
	for _, m := range spec.Mounts {
		if id, ok := listed(m); ok {
			s.voided = s.voided || id == void
			s.readMount(m.Destination, id)
		}
	}
	if s.voided {
		s.mounted, s.mountedErr = list{}, nil
	}
	// The environment of a container that CDI edits says "void": its devices are there already.
	if len(spec.Annotations) > 0 && !isVoid(s.Env[EnvVisibleDevices]) {
		s.annotated, s.annotatedErr = readAnnotations(spec.Annotations, s.Container.Name)
		if s.Container.Kubernetes {
			// In a pod, containerd itself applies the kubelet's CDI annotations, including other
			// vendors'. A pod's author can write annotations too, and they give no right to a device.
			if s.annotatedErr != nil || s.annotated.onlyForeign() {
				s.annotated, s.annotatedErr = list{}, nil
			}
			s.annotated.foreign = nil
		}
	}
	return s
}

func ofContract(name string) bool {
	return strings.HasPrefix(name, "NVIDIA_") || strings.HasPrefix(name, "CUDA_") || strings.HasPrefix(name, config.SwarmPrefix)
}

func (s *Input) readMount(destination, id string) {
	l, failed := &s.mounted, &s.mountedErr
	var err error
	if channel, ok := strings.CutPrefix(id, imexDir); ok {
		l, failed = &s.channels, &s.channelsErr
		imex, _ := devnode.ByName(devnode.IMEX)
		err = l.add("nvidia.com/" + imex.CDIKind + "=" + channel)
	} else if cdi, ok := strings.CutPrefix(id, "cdi/"); ok {
		// <dir>/cdi/<vendor>/<class>/<name>, or the CDI name itself.
		if parts := strings.SplitN(cdi, "/", 3); len(parts) == 3 && !strings.Contains(parts[0]+parts[1], "=") {
			cdi = parts[0] + "/" + parts[1] + "=" + parts[2]
		}
		err = l.addCDI(cdi)
	} else {
		// NVIDIA's hook joins the names with commas, so that one may hold several.
		for item := range strings.SplitSeq(id, ",") {
			if item != "" && err == nil {
				err = l.add(item)
			}
		}
	}
	if err != nil && *failed == nil {
		*failed = fmt.Errorf("the mount at %s: %w", Quote(destination), err)
	}
}

// listed returns what a mount names in the device list: its path below the directory, by whole
// components, so that a similar path such as <dir>X/all is an ordinary mount (T44).
func listed(m specs.Mount) (id string, ok bool) {
	if path.Clean(m.Source) != "/dev/null" { // guard: device lists: /dev/null
		return "", false
	}
	return strings.CutPrefix(path.Clean("/"+m.Destination), DeviceListDir+"/") // guard: device lists: whole components
}

// isAnnotationKey reports whether an annotation carries CDI names, except for keys of the NRI plugin.
func isAnnotationKey(key string) bool {
	suffix, nvidia := strings.CutPrefix(key, annotationNRI+"/")
	return strings.HasPrefix(key, annotationCDI) || nvidia && suffix != "pod" && !strings.HasPrefix(suffix, "container.")
}

// readAnnotations reads the CDI annotations that apply to a container, in the order of their keys.
// Among the keys of NVIDIA's NRI plugin, the container's takes precedence over the pod's, and both
// over the bare key.
func readAnnotations(annotations map[string]string, container string) (list, error) {
	var keys []string
	for key := range annotations {
		if isAnnotationKey(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range []string{annotationNRI + "/container." + container, annotationNRI + "/pod", annotationNRI} {
		if _, ok := annotations[key]; ok {
			keys = append(keys, key)
			break
		}
	}
	var l list
	for _, key := range keys {
		if n := len(annotations[key]); n > maxText { // guard: parsers: length of annotations
			return list{}, fmt.Errorf("annotation %s has %d bytes: at most %d", Quote(key), n, maxText)
		}
		for item := range split(annotations[key]) {
			if err := l.addCDI(item); err != nil {
				return list{}, fmt.Errorf("annotation %s: %w", Quote(key), err)
			}
		}
	}
	return l, nil
}

// Asks reports whether the container asks for the driver at all, and why not. It needs no
// configuration, so that errors in the configuration do not affect a container that does not ask.
func (s Input) Asks() (asks bool, why string) {
	asks, why = s.environmentAsks()
	asks = asks || s.EditedByCDI || s.swarm && !s.Container.Kubernetes || !s.mounted.empty() || s.mountedErr != nil ||
		!s.annotated.empty() || s.annotatedErr != nil
	if asks && s.Container.Sandbox { // guard: grant: none for sandboxes
		return false, "the sandbox container of a pod never gets a GPU"
	}
	return asks, why
}

// isLegacy reports whether the image is older than CUDA 9: NVIDIA's stack gives such an image all
// GPUs and all capabilities by default.
func (s Input) isLegacy() bool { return s.Env[EnvCUDAVersion] != "" && s.Env[EnvRequireCUDA] == "" }

// environmentAsks reports whether the environment asks for the driver, and why.
func (s Input) environmentAsks() (asks bool, why string) {
	value, set := s.Env[EnvVisibleDevices]
	if !set && s.isLegacy() {
		return true, EnvVisibleDevices + " is not set and " + EnvCUDAVersion + " is, without " + EnvRequireCUDA + ": an image older than CUDA 9"
	}
	if !set {
		return false, EnvVisibleDevices + " is not set"
	}
	return namesDevices(value)
}

// namesDevices reports whether a list of devices asks for the driver, and why.
func namesDevices(value string) (asks bool, why string) {
	if isBlank(value) {
		return false, EnvVisibleDevices + " is empty"
	}
	return !isVoid(value), EnvVisibleDevices + "=" + Quote(value)
}

// Programs that NVIDIA's CDI specifications run as hooks: nvidia-cdi-hook <what>, or nvidia-ctk
// hook <what>.
const (
	cdiHook = "nvidia-cdi-hook"
	ctkHook = "nvidia-ctk"
)

// isCDIHook reports whether a hook comes from one of NVIDIA's CDI specifications.
func isCDIHook(h specs.Hook) bool {
	return hookRuns(h, cdiHook) || hookRuns(h, ctkHook) && slices.Contains(h.Args, "hook")
}

// nvidiaHooks are the programs of NVIDIA's stack that docker --gpus and CDI specifications add to a
// specification as OCI hooks. They would inject GPUs again, or GPUs that were not granted, by
// executing programs that work on the image (CVE-2025-23266, CVE-2025-23267).
var nvidiaHooks = []string{"nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-cli", ctkHook, cdiHook}

// IsNVIDIAHook reports whether a hook is one of NVIDIA's.
func IsNVIDIAHook(h specs.Hook) bool {
	return slices.ContainsFunc(nvidiaHooks, func(name string) bool { return hookRuns(h, name) })
}

// hookRuns reports whether a hook runs this program, judging by its path or, for a wrapper, by
// args[0]. GPU Operator's programs are wrappers of <name>.real.
func hookRuns(h specs.Hook, program string) bool {
	if strings.TrimSuffix(path.Base(h.Path), ".real") == program {
		return true
	}
	return len(h.Args) > 0 && strings.TrimSuffix(path.Base(h.Args[0]), ".real") == program // guard: hooks: wrappers
}

// Hooks returns the hooks of all stages.
func Hooks(hooks specs.Hooks) []specs.Hook {
	//nolint:staticcheck // Prestart is deprecated and still what docker --gpus uses.
	return slices.Concat(hooks.Prestart, hooks.CreateRuntime, hooks.CreateContainer, hooks.StartContainer, hooks.Poststart, hooks.Poststop)
}

// editedByCDI reports whether a CDI specification of NVIDIA's was applied to the container: by
// containerd for CDIDevices of CRI, by docker or ctr for --device, for a claim of the DRA driver.
// Without hooks, a specification of another author needs no changes.
func editedByCDI(spec *bundle.Spec, env map[string]string) bool {
	return (env[EnvCDI] != "" || slices.ContainsFunc(Hooks(spec.Hooks), isCDIHook)) &&
		slices.ContainsFunc(spec.Linux.Devices, func(d specs.LinuxDevice) bool {
			return (d.Type == "c" || d.Type == "u") && devnode.IsDriver(path.Clean(d.Path))
		})
}

// words lists texts of which every configuration that asks has at least one: the variables of the
// contract, CDI annotations, swarm's variables, the device list and NVIDIA's hooks. They also match
// containers that have nodes of the driver but do not ask: by number, since a user may give a node
// another name (docker run --device /dev/nvidia0:/dev/gpu0), as Go's JSON encoder writes it. The
// driver's other majors vary, but their nodes are useless without those of this one.
var words = []string{
	"/dev/nvidia", fmt.Sprintf(`"major":%d`, devnode.DriverMajor), fmt.Sprintf(`"major": %d`, devnode.DriverMajor), // guard: mask: driver's nodes under other names
	EnvVisibleDevices, EnvCUDAVersion, "cdi.k8s.io", config.SwarmPrefix, path.Base(DeviceListDir),
	cdiHook, ctkHook, "nvidia-container-",
}

// StaleCDI says what to do about device numbers that this host does not have.
const StaleCDI = "if a CDI file is the reason, it is from another boot, MIG layout or driver: make it again (nvidia-shimctl prepare --cdi; systemctl restart nvidia-cdi-refresh, or nvidia-ctk cdi generate --output FILE; restart the device plugin) and create the container again"

// MightAsk reports whether a configuration in JSON may belong to a container that asks, or that has
// nodes of the driver or NVIDIA's hooks. For most containers it does not, and their configuration
// need not be decoded.
func MightAsk(raw []byte) bool {
	return slices.ContainsFunc(words, func(word string) bool { return bytes.Contains(raw, []byte(word)) })
}
