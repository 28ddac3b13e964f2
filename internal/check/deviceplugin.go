package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// pluginName is the program of NVIDIA's device plugin for Kubernetes.
const pluginName = "nvidia-device-plugin"

// plugin holds the settings of NVIDIA's device plugin. Those that are empty are left to its
// configuration file, a path in the plugin's container that is not read here.
type plugin struct {
	strategies          []string // by which it tells the runtime what was allocated
	passSpecs, ids, mig string
	configFile          string
}

func readPlugin(p procfs.Process) plugin {
	d := plugin{configFile: setting(p, "config-file", "")}
	// Without a configuration file the plugin has defaults.
	standard := func(value string) string {
		if d.configFile != "" {
			return ""
		}
		return value
	}
	d.passSpecs = setting(p, "pass-device-specs", standard("false"))
	d.ids = setting(p, "device-id-strategy", standard("uuid"))
	d.mig = setting(p, "mig-strategy", standard("none"))
	separator := func(r rune) bool { return r == ',' || r == ' ' }
	d.strategies = strings.FieldsFunc(setting(p, "device-list-strategy", standard("envvar")), separator)
	return d
}

// setting is the value of a flag on the plugin's command line, or else of its variable.
func setting(p procfs.Process, flag, standard string) string {
	last := p.Environ[strings.ReplaceAll(strings.ToUpper(flag), "-", "_")]
	for i, a := range p.Args {
		name, value, found := strings.Cut(a, "=")
		switch {
		case name != "--"+flag && name != "-"+flag:
			continue
		case found:
		case flag == "pass-device-specs":
			value = "true"
		case i+1 < len(p.Args):
			value = p.Args[i+1]
		}
		last = value
	}
	return cmp.Or(last, standard)
}

// checkDevicePlugin says what the settings of the device plugin mean for the shim. There are
// several plugins during an update, and on a host with nodes in containers.
func checkDevicePlugin(n *node) []Finding {
	policies := handlerPolicies(n)
	var list []Finding
	// Equal plugins have equal findings.
	add := func(findings ...Finding) {
		for _, f := range findings {
			if !slices.Contains(list, f) {
				list = append(list, f)
			}
		}
	}
	for _, p := range n.Proc.Named(pluginName) {
		d := readPlugin(p)
		add(fine("NVIDIA's device plugin runs: device-list-strategy %.256q, device-id-strategy %.256q, pass-device-specs %.256q, mig-strategy %.256q",
			strings.Join(d.strategies, ","), d.ids, d.passSpecs, d.mig))
		if d.configFile != "" {
			add(fine("this check does not read the plugin's configuration file %.256q, which sets what is empty here", d.configFile))
		}
		for _, key := range slices.Sorted(maps.Keys(policies)) {
			if policies[key].Kubernetes == config.TrustEnv {
				add(warning("set policy.kubernetes = \"enforce\": the shim then reads what was allocated",
					"%skubernetes is \"trust-env\": the author of an image or a pod chooses its GPUs, whatever the device plugin allocated", key))
			}
			for _, strategy := range d.strategies {
				add(checkStrategy(n, d, strategy, key, policies[key]))
			}
		}
		add(checkMIGStrategy(n, d)...)
	}
	if len(list) == 0 {
		return one(fine("NVIDIA's device plugin does not run on this node"))
	}
	return list
}

// checkStrategy checks one way in which the plugin tells the runtime what was allocated. key is the
// prefix of the policy's keys.
func checkStrategy(n *node, d plugin, strategy, key string, p config.Policy) Finding {
	const passSpecs = "PASS_DEVICE_SPECS=true in the device plugin's environment"
	// The plugin does not start with a value that is no boolean.
	pass, _ := strconv.ParseBool(d.passSpecs)
	switch {
	case strategy == "envvar" && pass:
		return fine("envvar with pass-device-specs: the container's specification has the grant, which is fastest")
	case strategy == "envvar" && d.passSpecs == "":
		return fine("envvar: the shim asks the kubelet for each container that asks for a GPU, unless the configuration file sets pass-device-specs")
	case strategy == "envvar" && p.Kubernetes == config.TrustEnv:
		return fine("envvar: the environment grants")
	case strategy == "envvar" && !n.exists(p.KubeletSocket):
		return warning("set "+passSpecs+", or let "+key+"kubelet-socket name the kubelet's socket",
			"envvar without pass-device-specs, and no socket at %skubelet-socket (%s): nothing says what was allocated", key, p.KubeletSocket)
	case strategy == "envvar":
		return fine("envvar without pass-device-specs: the shim asks the kubelet for each container that asks for a GPU; %s avoids that", passSpecs)
	case strategy == "volume-mounts" && p.AcceptVolumeMounts:
		return fine("volume-mounts: the mounts grant, which is safe if pods may not mount paths of the host")
	case strategy == "volume-mounts":
		return problem("set policy.accept-volume-mounts = true, or DEVICE_LIST_STRATEGY=envvar in the device plugin's environment",
			"volume-mounts, but %saccept-volume-mounts is false: containers with an allocated GPU do not start", key)
	case strategy != "cdi-annotations" && strategy != "cdi-cri":
		return warning("use one of envvar, volume-mounts, cdi-annotations, cdi-cri", "device-list-strategy %.256q is not known to this release", strategy)
	case !hasCDI(n):
		return problem("set enable_cdi = true in the section of the CRI plugin in "+n.ContainerdConfig,
			"%s, but CDI is off in containerd %s: containers with an allocated GPU start without it", strategy, n.version)
	case p.ForeignHooks == config.Refuse:
		return fine("%s: containerd adds the devices by CDI; NVIDIA's hooks in the CDI specification make the shim refuse containers that also ask by environment (policy.foreign-hooks)", strategy)
	}
	return fine("%s: containerd adds the devices by CDI; NVIDIA's hooks in the CDI specification are replaced for containers that also ask by environment", strategy)
}

// hasCDI reports whether containerd's CRI plugin has CDI. From 2.4 on it is always on, before 2.0
// it is off by default.
func hasCDI(n *node) bool {
	switch {
	case n.registeredErr != nil || n.version.AtLeast(2, 4, 0):
		return true
	case n.registered.CDI != nil:
		return *n.registered.CDI
	}
	return !n.version.Known() || n.version.AtLeast(2, 0, 0)
}

// handlerPolicies are the policies that containers meet, by the prefix of their keys in messages: a
// handler's options table overrides the configuration file.
func handlerPolicies(n *node) map[string]config.Policy {
	policies := map[string]config.Policy{}
	for name, r := range n.handlers() {
		overrides, err := policyOverrides(r)
		if err != nil || len(overrides) == 0 {
			policies["policy."] = n.config.Policy
			continue
		}
		// Override changes lists in place: it gets a configuration of its own.
		if c, err := n.loadConfig(); err == nil && c.Override(overrides) == nil {
			policies[fmt.Sprintf("handler %q: policy.", name)] = c.Policy
		}
	}
	if len(policies) == 0 {
		policies["policy."] = n.config.Policy
	}
	return policies
}

// checkMIGStrategy compares what the plugin allocates with the MIG devices of the node.
func checkMIGStrategy(n *node, d plugin) []Finding {
	if n.gpus == nil || len(n.gpus.MIG) == 0 || d.mig == "" {
		return nil
	}
	if d.mig == "single" || d.mig == "mixed" {
		return one(fine("the device plugin allocates MIG devices, of which this node has %d", len(n.gpus.MIG)))
	}
	return one(warning("set MIG_STRATEGY=mixed or single in the device plugin's environment, or switch MIG off (nvidia-smi -mig 0)",
		"mig-strategy %.256q: the device plugin allocates MIG-partitioned GPUs as whole ones: containers that ask for them by name do not start", d.mig))
}
