package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// devicePluginName is the program of NVIDIA's device plugin for Kubernetes.
const devicePluginName = "nvidia-device-plugin"

// Strategies by which the plugin tells the runtime what was allocated.
const (
	strategyEnvvar         = "envvar"
	strategyVolumeMounts   = "volume-mounts"
	strategyCDIAnnotations = "cdi-annotations"
	strategyCDICRI         = "cdi-cri"
)

// devicePlugin is how NVIDIA's device plugin was started. Its flags go before its
// environment, which goes before its configuration file.
type devicePlugin struct {
	lists       []string
	ids, mig    string
	deviceSpecs bool
	// file is its configuration file, and open are the flags that it may set. It is
	// not read: it is a path of the plugin's container.
	file string
	open []string
}

func newDevicePlugin(p process) devicePlugin {
	var d devicePlugin
	get := func(flag, standard string) string {
		v, ok := p.setting(flag)
		if !ok {
			d.open = append(d.open, flag)
			return standard
		}
		return v
	}
	d.lists = strings.Split(get("device-list-strategy", strategyEnvvar), ",")
	for i, s := range d.lists {
		d.lists[i] = strings.TrimSpace(s)
	}
	slices.Sort(d.lists)
	d.lists = slices.Compact(d.lists)
	// A plugin with another value does not start.
	d.deviceSpecs, _ = strconv.ParseBool(get("pass-device-specs", "false"))
	d.ids = get("device-id-strategy", "uuid")
	d.mig = get("mig-strategy", "none")
	if d.file, _ = p.setting("config-file"); d.file == "" {
		d.open = nil
	}
	return d
}

// setting is the value of a flag of the plugin, or of its variable: a flag's name in
// upper case with underscores. Repeated flags make a list.
func (p process) setting(flag string) (value string, set bool) {
	var values []string
	for i, a := range p.args {
		name, value, found := strings.Cut(a, "=")
		if name != "--"+flag && name != "-"+flag {
			continue
		}
		switch {
		case found:
		case flag == "pass-device-specs":
			value = "true"
		case i+1 < len(p.args):
			value = p.args[i+1]
		}
		values = append(values, value)
	}
	switch {
	case len(values) == 0:
		value = p.environ[strings.ReplaceAll(strings.ToUpper(flag), "-", "_")]
	case flag == "device-list-strategy":
		value = strings.Join(values, ",")
	default:
		value = values[len(values)-1]
	}
	return value, value != ""
}

// summary names the plugin's settings; its values are anybody's who can start a
// process of that name.
func (d devicePlugin) summary() string {
	return fmt.Sprintf("device-list-strategy %.256q, device-id-strategy %.256q, pass-device-specs %t, mig-strategy %.256q",
		strings.Join(d.lists, ","), d.ids, d.deviceSpecs, d.mig)
}

// checkDevicePlugin says what the strategy of NVIDIA's device plugin means for the
// shim. Several plugins are those of several nodes in containers, or an update.
func checkDevicePlugin(_ context.Context, n *node) []finding {
	var seen []devicePlugin
	var out []finding
	for _, p := range n.proc.processes(func(dir string) bool {
		exe, err := executed(dir)
		return err == nil && filepath.Base(exe) == devicePluginName
	}) {
		d := newDevicePlugin(p)
		if slices.ContainsFunc(seen, func(o devicePlugin) bool { return reflect.DeepEqual(o, d) }) {
			continue
		}
		seen = append(seen, d)
		out = append(out, fine("process %d is NVIDIA's device plugin: %s", p.pid, d.summary()))
		out = append(out, n.checkStrategies(d)...)
	}
	if len(out) == 0 {
		return []finding{fine("NVIDIA's device plugin does not run on this node")}
	}
	return out
}

func (n *node) checkStrategies(d devicePlugin) []finding {
	var out []finding
	if len(d.open) > 0 {
		out = append(out, fine("its configuration file %.256q is not looked at here and may set %s", d.file, strings.Join(d.open, ", ")))
	}
	policies := n.policies()
	for _, where := range slices.Sorted(maps.Keys(policies)) {
		if policies[where].Kubernetes == config.TrustEnv {
			out = append(out, warning("set policy.kubernetes = \"enforce\": the shim finds out what was allocated",
				"%skubernetes is \"trust-env\": whoever writes an image or a pod chooses its GPUs, whatever the device plugin allocated", where))
		}
	}
	if slices.Contains(d.open, "device-list-strategy") {
		return append(out, n.checkMIGStrategy(d)...)
	}
	for _, strategy := range d.lists {
		switch strategy {
		case strategyEnvvar:
			out = append(out, n.checkEnvvar(d, policies)...)
		case strategyVolumeMounts:
			out = append(out, checkVolumeMounts(policies)...)
		case strategyCDIAnnotations, strategyCDICRI:
			out = append(out, n.checkCDI(strategy, policies)...)
		default:
			out = append(out, warning("use one of "+strings.Join([]string{strategyEnvvar, strategyVolumeMounts, strategyCDIAnnotations, strategyCDICRI}, ", "),
				"device-list-strategy %.256q is not known to this release", strategy))
		}
	}
	return append(out, n.checkMIGStrategy(d)...)
}

// policies are those that containers meet, by what to call the place that sets them: a
// handler's options table goes before the configuration file.
func (n *node) policies() map[string]config.Policy {
	out := map[string]config.Policy{}
	if n.registeredErr == nil {
		for name, r := range n.registered.Runtimes {
			if !r.Ours() {
				continue
			}
			o, err := translate(r)
			if err != nil || len(o.Overrides) == 0 {
				out["policy."] = n.cfg.Policy
				continue
			}
			// Another copy, because its lists are overwritten in place.
			c, err := n.load()
			if err != nil {
				c = config.Default()
			}
			// Translate has tried it.
			if c.Override(o.Overrides) == nil {
				out[fmt.Sprintf("handler %q: policy.", name)] = c.Policy
			}
		}
	}
	if len(out) == 0 {
		out["policy."] = n.cfg.Policy
	}
	return out
}

func (n *node) checkEnvvar(d devicePlugin, policies map[string]config.Policy) []finding {
	const passSpecs = "PASS_DEVICE_SPECS=true in the device plugin's environment"
	if d.deviceSpecs {
		return []finding{fine("envvar with pass-device-specs: the grant is in the container's specification and nobody has to be asked, which is fastest")}
	}
	if len(d.open) > 0 {
		return []finding{fine("envvar: the kubelet is asked at each create of a container that asks for a GPU, unless pass-device-specs is set")}
	}
	var out []finding
	asked := false
	for _, where := range slices.Sorted(maps.Keys(policies)) {
		p := policies[where]
		if p.Kubernetes == config.TrustEnv {
			continue
		}
		if _, err := os.Stat(filepath.Join(n.root, p.KubeletSocket)); err != nil {
			out = append(out, warning("set "+passSpecs+", or let "+where+"kubelet-socket name the kubelet's socket",
				"envvar without pass-device-specs, and no socket at %skubelet-socket (%s): nothing says what was allocated, and the environment alone grants", where, p.KubeletSocket))
			continue
		}
		asked = true
	}
	if asked {
		out = append(out, fine("envvar without pass-device-specs: the kubelet is asked at each create of a container that asks for a GPU; "+passSpecs+" saves the question"))
	}
	return out
}

func checkVolumeMounts(policies map[string]config.Policy) []finding {
	var out []finding
	accepted := false
	for _, where := range slices.Sorted(maps.Keys(policies)) {
		if policies[where].AcceptVolumeMounts {
			accepted = true
			continue
		}
		out = append(out, problem("set policy.accept-volume-mounts = true, or DEVICE_LIST_STRATEGY=envvar in the device plugin's environment",
			"volume-mounts, but %saccept-volume-mounts is false: containers with an allocated GPU do not start", where))
	}
	if accepted {
		out = append(out, fine("volume-mounts: the mounts grant, which is sound where pods may not mount paths of the host"))
	}
	return out
}

func (n *node) checkCDI(strategy string, policies map[string]config.Policy) []finding {
	if !n.cdi() {
		return []finding{problem("set enable_cdi = true in the section of the CRI plugin in "+n.containerdConfig,
			"%s, but CDI is off in containerd %s: containers with an allocated GPU start without it", strategy, n.daemon)}
	}
	hooks := "are replaced only for containers that also ask by environment"
	for _, p := range policies {
		if p.ForeignHooks == config.Refuse {
			hooks = "make the shim refuse containers that also ask by environment (policy.foreign-hooks)"
		}
	}
	return []finding{fine("%s: containerd puts the devices in by CDI and the shim leaves them as they are; NVIDIA's hooks in the CDI specification %s", strategy, hooks)}
}

// cdi tells whether containerd's CRI knows CDI: by its configuration up to 2.3, where
// it is off by default before 2.0, always from 2.4 on.
func (n *node) cdi() bool {
	switch {
	case n.registeredErr != nil || n.daemon.AtLeast(2, 4, 0):
		return true
	case n.registered.CDI != nil:
		return *n.registered.CDI
	}
	return !n.daemon.Known() || n.daemon.AtLeast(2, 0, 0)
}

// checkMIGStrategy compares what the plugin hands out with what GPUs are divided into.
func (n *node) checkMIGStrategy(d devicePlugin) []finding {
	inv, _, err := n.host()
	if inv == nil || err != nil || slices.Contains(d.open, "mig-strategy") {
		return nil
	}
	instances, err := inv.Instances()
	if err != nil || len(instances) == 0 {
		return nil
	}
	if d.mig == "single" || d.mig == "mixed" {
		return []finding{fine("the device plugin hands out MIG devices, of which this node has %d", len(instances))}
	}
	return []finding{warning("set MIG_STRATEGY=mixed or single in the device plugin's environment, or switch MIG off (nvidia-smi -mig 0)",
		"mig-strategy %.256q: the device plugin hands out GPUs that MIG has divided as whole ones, which are of no use: containers that ask for them by name do not start", d.mig)}
}
