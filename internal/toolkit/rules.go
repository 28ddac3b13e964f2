package toolkit

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// rule decides about one option. An error is what there is to look at.
type rule func(m *migration, o *Option, value any) error

const (
	keyMounts = "accept-nvidia-visible-devices-as-volume-mounts"
	keyLoad   = "nvidia-container-cli.load-kmods"
	keyRoot   = "nvidia-container-cli.root"
)

// rules are the options of toolkit 1.20 and of earlier ones (toolkit.md 2).
var rules = map[string]rule{
	keyMounts: boolean("policy.accept-volume-mounts"),
	"accept-nvidia-visible-devices-envvar-when-unprivileged": boolean("policy.accept-env-when-unprivileged"),
	"disable-require":               boolean("policy.disable-require"),
	"supported-driver-capabilities": capabilities,
	"swarm-resource":                swarm,

	"features.allow-cuda-compat-libs-from-container":    off("nothing of an image is ever mounted"),
	"features.allow-ldconfig-from-container":            off("ldconfig is not run"),
	"features.allow-unknown-oci-spec-fields":            none("fields that this build does not know always reach runc unchanged"),
	"features.disable-cuda-compat-lib-hook":             off("forward compatibility libraries of an image are used where they serve the host's driver; there is no switch"),
	"features.disable-imex-channel-creation":            none("no node is ever made for a container: nvidia-shimctl prepare --imex-channels makes those of the host"),
	"features.ignore-imex-channel-requests":             boolean("policy.ignore-imex-channels"),
	"features.no-additional-gids-for-device-nodes":      inverse("container.additional-gids"),
	"nvidia-container-cli.debug":                        none("the log is containerd's: log.level"),
	"nvidia-container-cli.environment":                  filled("nothing is executed that would have an environment"),
	"nvidia-container-cli.ldcache":                      only("/etc/ld.so.cache", "the loader's cache of host.driver-root is read; name further directories in host.driver-libraries"),
	"nvidia-container-cli.ldconfig":                     none("ldconfig is not run: the shim writes the image's loader cache"),
	keyLoad:                                             boolean("host.load-kernel-modules"),
	"nvidia-container-cli.no-cgroups":                   off("device rules are in the container's specification, where a rootless runtime leaves them out by itself"),
	"nvidia-container-cli.no-pivot":                     off("NoPivotRoot = true in the handler's options, where the root file system is a ramfs"),
	"nvidia-container-cli.path":                         none("nvidia-container-cli is not used"),
	keyRoot:                                             driverRoot,
	"nvidia-container-cli.user":                         none("NVML is asked in a process of its own, never in a container's"),
	"nvidia-container-runtime.debug":                    none("the log is containerd's: log.level"),
	"nvidia-container-runtime.log-level":                logLevel,
	"nvidia-container-runtime.mode":                     mode,
	"nvidia-container-runtime.runtimes":                 runtimes,
	"nvidia-container-runtime-hook.path":                none("no hook is used"),
	"nvidia-container-runtime-hook.skip-mode-detection": none("hooks of NVIDIA's in a specification are replaced: policy.foreign-hooks"),
	"nvidia-ctk.path":                                   none("no hook is used"),

	"nvidia-container-runtime.modes.cdi.annotation-prefixes":   among([]string{"cdi.k8s.io/", "nvidia.cdi.k8s.io/"}, "devices in other annotations are not given"),
	"nvidia-container-runtime.modes.cdi.default-kind":          among([]string{"nvidia.com/gpu"}, "a name without a kind is a GPU's index or UUID here"),
	"nvidia-container-runtime.modes.cdi.spec-dirs":             specDirs,
	"nvidia-container-runtime.modes.csv.compat-container-root": none("forward compatibility libraries of an image are used where they serve the host's driver"),
	"nvidia-container-runtime.modes.csv.mount-spec-path":       only("/etc/nvidia-container-runtime/host-files-for-container.d", "lists of files for Tegra are not read from elsewhere"),
	"nvidia-container-runtime.modes.legacy.cuda-compat-mode":   compatMode,
	"nvidia-container-runtime.experimental":                    none("an option of old toolkits"),
	"nvidia-container-runtime.discover-mode":                   none("an option of old toolkits"),
}

// text, flag and texts take a value of a kind.
func text(value any) (string, error) {
	s, ok := value.(string)
	if !ok {
		return "", errors.New("it is not a string")
	}
	return s, nil
}

func flag(value any) (bool, error) {
	b, ok := value.(bool)
	if !ok {
		return false, errors.New("it is neither true nor false")
	}
	return b, nil
}

// texts takes a list, or a string with commas.
func texts(value any) ([]string, error) {
	out := []string{}
	switch v := value.(type) {
	case string:
		for s := range strings.SplitSeq(v, ",") {
			if s = strings.TrimSpace(s); s != "" {
				out = append(out, s)
			}
		}
		return out, nil
	case []any:
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil, errors.New("it is not a list of strings")
			}
			out = append(out, s)
		}
		return out, nil
	}
	return nil, errors.New("it is not a list of strings")
}

// boolean carries a switch over.
func boolean(to string) rule {
	return func(m *migration, o *Option, value any) error {
		b, err := flag(value)
		if err != nil {
			return err
		}
		return m.put(o, to, b)
	}
}

// inverse carries a switch over whose counterpart here is the other way round.
func inverse(to string) rule {
	return func(m *migration, o *Option, value any) error {
		b, err := flag(value)
		if err != nil {
			return err
		}
		return m.put(o, to, !b)
	}
}

// list carries a list over, if each item is accepted here.
func list(m *migration, o *Option, value any, to string, refuse func(item string) error) error {
	l, err := texts(value)
	if err != nil {
		return err
	}
	for _, item := range l {
		if err := refuse(item); err != nil {
			return err
		}
	}
	return m.put(o, to, l)
}

// swarm carries the names of variables over. Here they all begin alike, so that the
// shim can see without a configuration whether one is there.
func swarm(m *migration, o *Option, value any) error {
	return list(m, o, value, "policy.swarm-resources", func(name string) error {
		if rest, ok := strings.CutPrefix(name, "DOCKER_RESOURCE_"); !ok || rest == "" {
			return fmt.Errorf("%.64q does not begin with DOCKER_RESOURCE_, as the names in policy.swarm-resources do", name)
		}
		return nil
	})
}

func specDirs(m *migration, o *Option, value any) error {
	return list(m, o, value, "host.cdi-spec-dirs", func(dir string) error {
		if !path.IsAbs(dir) {
			return fmt.Errorf("%.256q is not an absolute path", dir)
		}
		return nil
	})
}

// none is for an option that has nothing to say here, whatever its value.
func none(why string) rule {
	return func(_ *migration, o *Option, _ any) error {
		o.State, o.Why = None, why
		return nil
	}
}

// off is for a switch that says nothing while it is off.
func off(why string) rule {
	return func(_ *migration, o *Option, value any) error {
		on, err := flag(value)
		if err != nil {
			return err
		}
		o.State, o.Why = None, why
		if on {
			o.State = Attention
		}
		return nil
	}
}

// filled is for a list that says nothing while it is empty.
func filled(why string) rule {
	return func(_ *migration, o *Option, value any) error {
		l, err := texts(value)
		if err != nil {
			return err
		}
		o.State, o.Why = None, why
		if len(l) > 0 {
			o.State = Attention
		}
		return nil
	}
}

// only is for a setting of which one value means what is done here.
func only(value, why string) rule { return among([]string{value}, why) }

// among is for a setting, or list, whose values here are fixed.
func among(allowed []string, why string) rule {
	return func(_ *migration, o *Option, value any) error {
		l, err := texts(value)
		if err != nil {
			return err
		}
		o.State = Default
		for _, s := range l {
			if !slices.Contains(allowed, s) {
				o.State, o.Why = Attention, why
			}
		}
		return nil
	}
}

func capabilities(m *migration, o *Option, value any) error {
	l, err := texts(value)
	if err != nil {
		return err
	}
	all := config.Default().Container.SupportedCapabilities
	if slices.Contains(l, "all") {
		l = all
	}
	for _, c := range l {
		if !slices.Contains(all, c) {
			return fmt.Errorf("unknown capability %.64q", c)
		}
	}
	// The same set in another order is no difference.
	if len(slices.Compact(slices.Sorted(slices.Values(l)))) == len(all) {
		l = all
	}
	return m.put(o, "container.supported-capabilities", l)
}

// driverRoot carries the root over. The toolkit looks for nodes below it too; here that
// is another setting, which is made where the nodes are there and nowhere else.
func driverRoot(m *migration, o *Option, value any) error {
	root, err := clean(value)
	if err != nil {
		return err
	}
	if err := m.put(o, "host.driver-root", root); err != nil || root == "/" {
		return err
	}
	const node = "dev/nvidiactl"
	if m.exists(path.Join(root, node)) && !m.exists("/"+node) {
		dev := *o
		if err := m.put(&dev, "host.dev-root", root); err != nil {
			return err
		}
		o.To += ", " + dev.To
		o.Why = "the device nodes are there, and not in /dev"
		return nil
	}
	o.Why = "device nodes are looked up in /dev: host.dev-root"
	return nil
}

func logLevel(m *migration, o *Option, value any) error {
	s, err := text(value)
	if err != nil {
		return err
	}
	// The words of logrus.
	levels := map[string]string{"trace": "debug", "debug": "debug", "info": "info", "warn": "warn", "warning": "warn", "error": "error", "fatal": "error", "panic": "error"}
	level, ok := levels[strings.ToLower(s)]
	if !ok {
		return fmt.Errorf("unknown level %.64q", s)
	}
	return m.put(o, "log.level", level)
}

func mode(_ *migration, o *Option, value any) error {
	s, err := text(value)
	if err != nil {
		return err
	}
	switch s {
	case "auto", "legacy", "cdi", "jit-cdi":
		o.State, o.Why = None, "there is one mode here, and it does what legacy mode does"
	case "csv":
		return errors.New("mode csv is for Tegra: see which of its files are found with nvidia-shimctl info")
	default:
		return fmt.Errorf("unknown mode %.64q", s)
	}
	return nil
}

func runtimes(_ *migration, o *Option, value any) error {
	l, err := texts(value)
	if err != nil {
		return err
	}
	o.State, o.Why = Default, "runc in containerd's PATH"
	// The first that is installed is used.
	if len(l) > 0 && l[0] != "runc" && l[0] != "docker-runc" {
		return fmt.Errorf("BinaryName = %q in the handler's options, where that runtime is wanted", l[0])
	}
	return nil
}

func compatMode(_ *migration, o *Option, value any) error {
	s, err := text(value)
	if err != nil {
		return err
	}
	o.State, o.Why = None, "forward compatibility libraries of an image are used where they serve the host's driver"
	if s == "disabled" {
		return errors.New("forward compatibility libraries of an image are used where they serve the host's driver; there is no switch")
	}
	return nil
}
