package toolkit

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// States of an option.
const (
	// Carried options are in the new file.
	Carried = "carried over"
	// Default options say what is the default here.
	Default = "the default here"
	// None is for options without a meaning here; nothing is lost.
	None = "no meaning here"
	// Attention is for options whose effect the new file does not have. Why says what to do.
	Attention = "look at it"
)

const (
	keyMounts       = "accept-nvidia-visible-devices-as-volume-mounts"
	keyRequire      = "disable-require"
	keyCapabilities = "supported-driver-capabilities"
	keyLoad         = "nvidia-container-cli.load-kmods"
	keyMode         = "nvidia-container-runtime.mode"
)

// defaultMode is the toolkit's. When a container is created it becomes cdi or jit-cdi.
const defaultMode = "auto"

// unrestrictedModes are the modes that ignore an image's requirements and the capabilities it asks
// for.
var unrestrictedModes = []any{"auto", "cdi", "jit-cdi"}

// unrestricted holds the settings that preserve the behaviour of these modes.
var unrestricted = map[string]any{
	"policy.disable-require":         true,
	"container.default-capabilities": config.Default().Container.Supported(false),
}

const whyCompat = "forward compatibility libraries of an image are used if they serve the host's driver; there is no switch"

// result is what becomes of an option: the settings that replace it, or a state. If it has neither,
// the option says what is the default here.
type result struct {
	settings   map[string]any
	state, why string
}

// rule decides about one option.
type rule func(root string, value any) result

// rules are the rules for the options of toolkit 1.20 and earlier.
var rules = map[string]rule{
	keyMounts: boolean("policy.accept-volume-mounts", false),
	"accept-nvidia-visible-devices-envvar-when-unprivileged": boolean("policy.accept-env-when-unprivileged", false),
	keyRequire:       boolean("policy.disable-require", false),
	keyCapabilities:  list(capabilities),
	"swarm-resource": list(swarmResources),

	"features.allow-cuda-compat-libs-from-container": only("no file of an image is ever mounted", false),
	"features.allow-ldconfig-from-container":         only("ldconfig is not run", false),
	"features.allow-unknown-oci-spec-fields":         none("fields that this build does not know always reach runc unchanged"),
	"features.disable-cuda-compat-lib-hook":          only(whyCompat, false),
	"features.disable-imex-channel-creation":         none("the shim never makes nodes: nvidia-shimctl prepare --imex-channels makes the host's"),
	"features.ignore-imex-channel-requests":          boolean("policy.ignore-imex-channels", false),
	"features.no-additional-gids-for-device-nodes":   boolean("container.additional-gids", true),

	"nvidia-container-cli.debug":       none("the log is containerd's: log.level"),
	"nvidia-container-cli.environment": only("no program is run that would use it"),
	"nvidia-container-cli.ldcache":     only("the loader's cache of host.driver-root is read; name further directories in host.driver-libraries", "/etc/ld.so.cache"),
	"nvidia-container-cli.ldconfig":    none("ldconfig is not run: the shim writes the image's loader cache"),
	keyLoad:                            boolean("host.load-kernel-modules", false),
	"nvidia-container-cli.no-cgroups":  only("device rules are in the container's specification; a rootless runtime omits them", false),
	"nvidia-container-cli.no-pivot":    only("NoPivotRoot = true in the handler's options, if the root file system is a ramfs", false),
	"nvidia-container-cli.path":        none("nvidia-container-cli is not used"),
	"nvidia-container-cli.root":        driverRoot,
	"nvidia-container-cli.user":        none("NVML runs in a separate process, never in a container"),

	"nvidia-container-runtime.debug":         none("the log is containerd's: log.level"),
	"nvidia-container-runtime.discover-mode": none("an option of old toolkits"),
	"nvidia-container-runtime.experimental":  none("an option of old toolkits"),
	"nvidia-container-runtime.log-level":     logLevel,
	keyMode:                                  mode,
	"nvidia-container-runtime.runtimes":      list(runtimes),

	"nvidia-container-runtime-hook.path":                none("no hook is used"),
	"nvidia-container-runtime-hook.skip-mode-detection": none("NVIDIA's hooks in a specification are replaced: policy.foreign-hooks"),
	"nvidia-ctk.path": none("no hook is used"),

	"nvidia-container-runtime.modes.cdi.annotation-prefixes":     only("devices in other annotations are not given", "cdi.k8s.io/", "nvidia.cdi.k8s.io/"),
	"nvidia-container-runtime.modes.cdi.default-kind":            only("a name without a kind is a GPU's index or UUID here", "nvidia.com/gpu"),
	"nvidia-container-runtime.modes.cdi.spec-dirs":               only("the shim reads no CDI specification; for other devices set cdi_spec_dirs in containerd's configuration", "/etc/cdi", "/var/run/cdi"),
	"nvidia-container-runtime.modes.csv.compat-container-root":   none("forward compatibility libraries of an image are used if they serve the host's driver"),
	"nvidia-container-runtime.modes.csv.mount-spec-path":         only("lists of files for Tegra are not read from elsewhere", "/etc/nvidia-container-runtime/host-files-for-container.d"),
	"nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks": list(disabledHooks),
	"nvidia-container-runtime.modes.legacy.cuda-compat-mode":     only(whyCompat, "ldconfig", "mount", "hook"),
}

// convert decides about one option of a file with this mode.
func convert(root string, mode any, key string, value any) result {
	rule, ok := rules[key]
	switch {
	case (key == keyRequire || key == keyCapabilities) && slices.Contains(unrestrictedModes, mode):
		return result{state: None, why: fmt.Sprintf("the toolkit ignores it in mode %q", mode)}
	case !ok && strings.HasPrefix(key, "nvidia-container-runtime.modes.jit-cdi."):
		return result{state: None, why: "no CDI specification is made"}
	case !ok:
		return attention("this nvidia-shimctl does not know this option of the toolkit")
	}
	return rule(root, value)
}

func carried(setting string, value any) result {
	return result{settings: map[string]any{setting: value}}
}

func attention(format string, args ...any) result {
	return result{state: Attention, why: fmt.Sprintf(format, args...)}
}

// none is the rule for an option without a meaning here, whatever its value.
func none(why string) rule {
	return func(string, any) result { return result{state: None, why: why} }
}

// only is the rule for an option, or a list, for which these values mean what the shim does anyway.
func only(why string, values ...any) rule {
	return func(_ string, value any) result {
		unknown := func(s string) bool { return !slices.Contains(values, any(s)) }
		given, ok := texts(value)
		if slices.Contains(values, value) || ok && !slices.ContainsFunc(given, unknown) {
			return result{}
		}
		return attention("%s", why)
	}
}

// boolean carries a switch over. invert is for a setting with the opposite meaning.
func boolean(setting string, invert bool) rule {
	return func(_ string, value any) result {
		on, ok := value.(bool)
		if !ok {
			return attention("it is neither true nor false")
		}
		return carried(setting, on != invert)
	}
}

// list is the rule for an option that is a list of strings, or one string with commas.
func list(decide func(values []string) result) rule {
	return func(_ string, value any) result {
		values, ok := texts(value)
		if !ok {
			return attention("it is not a list of strings")
		}
		return decide(values)
	}
}

// texts returns the strings of a list, or of one string with commas.
func texts(value any) ([]string, bool) {
	if s, ok := value.(string); ok {
		return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }), true
	}
	values, ok := value.([]any)
	out := []string{}
	for _, v := range values {
		s, isText := v.(string)
		ok = ok && isText
		out = append(out, s)
	}
	return out, ok
}

func swarmResources(names []string) result {
	fit, others := []string{}, []string{}
	for _, name := range names {
		// Before it reads its configuration, the shim searches only for variables with such names.
		if rest, ok := strings.CutPrefix(name, config.SwarmPrefix); ok && rest != "" {
			fit = append(fit, name)
		} else {
			others = append(others, name)
		}
	}
	if len(others) == 0 {
		return carried("policy.swarm-resources", fit)
	}
	r := attention("%.64q does not begin with %s, as names in policy.swarm-resources do", strings.Join(others, ","), config.SwarmPrefix)
	if len(fit) > 0 {
		r.settings = map[string]any{"policy.swarm-resources": fit}
	}
	return r
}

func capabilities(given []string) result {
	all := config.Default().Container.Supported(false)
	for _, c := range given {
		if c != "all" && !slices.Contains(all, c) {
			return attention("unknown capability %.64q", c)
		}
	}
	// In a fixed order, so that equal sets give equal settings.
	supported := slices.DeleteFunc(slices.Clone(all), func(c string) bool { return !slices.Contains(given, c) })
	switch {
	case slices.Contains(given, "all") || len(supported) == len(all):
		supported = []string{}
	case len(supported) == 0:
		return attention("it names no capability")
	}
	return carried("container.supported-capabilities", supported)
}

// driverRoot carries the driver root over. The toolkit also looks for device nodes below it; here
// that is another setting, which is added if the nodes are only there.
func driverRoot(root string, value any) result {
	driver, _ := value.(string)
	if !path.IsAbs(driver) {
		return attention("%.256q is not an absolute path", fmt.Sprint(value))
	}
	driver = path.Clean(driver)
	r := carried("host.driver-root", driver)
	if driver == "/" {
		return r
	}
	h := runtimeclass.Host{Tree: hosttree.Tree{Root: root}}
	const node = "/dev/nvidiactl"
	r.why = "device nodes are looked up in /dev: host.dev-root"
	if h.Exists(path.Join(driver, node)) && !h.Exists(node) {
		r.settings["host.dev-root"] = driver
		r.why = "the device nodes are there, and not in /dev"
	}
	return r
}

// levels are the level names of logrus.
var levels = map[string]string{
	"trace": "debug", "debug": "debug", "info": "info", "warn": "warn", "warning": "warn",
	"error": "error", "fatal": "error", "panic": "error",
}

func logLevel(_ string, value any) result {
	level, ok := levels[strings.ToLower(fmt.Sprint(value))]
	if !ok {
		return attention("unknown level %.64q", fmt.Sprint(value))
	}
	return carried("log.level", level)
}

func mode(_ string, value any) result {
	switch {
	case value == "legacy":
		return result{state: None, why: "there is one mode here, and it does what legacy mode does"}
	case value == "csv":
		return attention("mode csv is for Tegra: see which of its files are found with nvidia-shimctl info")
	case slices.Contains(unrestrictedModes, value):
		return result{settings: unrestricted}
	}
	return attention("unknown mode %.64q", fmt.Sprint(value))
}

func runtimes(names []string) result {
	// The toolkit uses the first one that is installed.
	if len(names) > 0 && names[0] != "runc" && names[0] != "docker-runc" {
		return attention("BinaryName = %q in the handler's options, if that runtime is wanted", names[0])
	}
	return result{why: "runc in containerd's PATH"}
}

func disabledHooks(hooks []string) result {
	if slices.Contains(hooks, "enable-cuda-compat") || slices.Contains(hooks, "all") {
		return attention(whyCompat)
	}
	return result{state: None, why: "no hook is used"}
}
