package runtimeclass

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
)

// A Distribution of Kubernetes brings its own containerd and writes its configuration
// at each start, from a template.
type Distribution struct {
	// Name is "k3s" or "rke2".
	Name string
	// Dir holds config.toml and the templates.
	Dir string
	// Units are the systemd units of which one runs on a node.
	Units []string
	// ConfigFile is where the default runtime is set.
	ConfigFile string
	// Programs are patterns of the paths of its containerd.
	Programs []string
}

// Distributions by name.
var Distributions = map[string]Distribution{
	"k3s": {
		Name: "k3s", Dir: "/var/lib/rancher/k3s/agent/etc/containerd", Units: []string{"k3s", "k3s-agent"},
		ConfigFile: "/etc/rancher/k3s/config.yaml",
		Programs:   []string{"/var/lib/rancher/k3s/data/current/bin/containerd"},
	},
	"rke2": {
		Name: "rke2", Dir: "/var/lib/rancher/rke2/agent/etc/containerd", Units: []string{"rke2-server", "rke2-agent"},
		ConfigFile: "/etc/rancher/rke2/config.yaml",
		Programs:   []string{"/var/lib/rancher/rke2/bin/containerd", "/var/lib/rancher/rke2/data/*/bin/containerd"},
	},
}

// k3sHandler is used where k3s or RKE2 have found NVIDIA's own runtime and made the
// handler "nvidia" of it.
const k3sHandler = "nvidia-shim"

// toolkitPaths are where k3s and RKE2 look for NVIDIA's runtime, beside PATH.
var toolkitPaths = []string{
	"/usr/local/nvidia/toolkit/nvidia-container-runtime", "/usr/bin/nvidia-container-runtime",
	"/usr/local/bin/nvidia-container-runtime",
}

// baseTemplate is a template that changes nothing. It is outside our markers: k3s
// copies them into the configuration, and all of its own would be between them.
const baseTemplate = "{{ template \"base\" . }}\n"

func (d Distribution) file(name string) string { return path.Join(d.Dir, name) }

func (d Distribution) restart() Restart { return Restart{Verb: "restart", Units: d.Units} }

// candidates are the files that an installation may write.
func (d Distribution) candidates() []string {
	return []string{d.file("config-v3.toml.tmpl"), d.file("config.toml.tmpl"), d.file("config-v3.toml.d/" + dropIn)}
}

// InstallDistribution plans the registration with k3s or RKE2: a drop-in where the
// generated configuration imports the directory and its containerd merges it, else
// lines at the end of the template. explicit says that the operator named the handler;
// otherwise it gives way to one of NVIDIA's runtime. The handler that was chosen is in
// the result.
func InstallDistribution(h Host, d Distribution, r Registration, explicit bool) (*Plan, string, error) {
	if err := r.validate(); err != nil {
		return nil, "", err
	}
	if _, err := os.Stat(h.real(path.Dir(path.Dir(path.Dir(d.Dir))))); err != nil {
		return nil, "", fmt.Errorf("%s %w: there is no %s", d.Name, errNoTarget, path.Dir(path.Dir(path.Dir(d.Dir))))
	}
	p := &Plan{Host: h, Restart: d.restart()}
	generated, err := h.load(d.file("config.toml"), true)
	if err != nil {
		return nil, "", err
	}
	main := generated[0]
	version := 3
	if main.text != nil && main.version < 3 {
		version = 2
	}

	taken, err := h.toolkit(d, generated, r.Handler)
	if err != nil {
		return nil, "", err
	}
	if taken != "" {
		if explicit || r.Handler == k3sHandler {
			return nil, "", fmt.Errorf("%w: %s: choose another --handler", ErrTaken, taken)
		}
		p.note(fmt.Sprintf("%s: the handler is %q here, for a RuntimeClass with that handler (nvidia-shimctl manifest --handler %s)", taken, k3sHandler, k3sHandler))
		r.Handler = k3sHandler
	}

	// k3s brings another containerd with each of its own versions: the form that all
	// of them serve.
	shim := handler{runtimeType: stockType, runtimePath: r.shim(), systemdCgroup: effective(generated).SystemdCgroup()}
	p.note(fmt.Sprintf("%s: runtime_type %q with runtime_path, which each containerd that %s brings can serve", d.Name, stockType, d.Name))

	target := d.file("config-v3.toml.tmpl")
	if version == 2 {
		target = d.file("config.toml.tmpl")
	}
	drop := main.dropIn()
	if drop != "" && version == 3 && path.Dir(drop) == d.file("config-v3.toml.d") {
		if h.merging() {
			target = drop
		} else {
			p.note(fmt.Sprintf("the template is used and not %s, because containerd %s may not merge what it imports", path.Dir(drop), h.Daemon))
		}
	}
	for _, name := range d.candidates() {
		before, err := h.read(name)
		if err != nil {
			return nil, "", err
		}
		if name != target {
			c, err := h.removed(name, before)
			if err != nil {
				return nil, "", err
			}
			if c.changes() {
				p.Changes = append(p.Changes, c)
			}
			continue
		}
		c, err := d.register(name, before, version, r, shim)
		if err != nil {
			return nil, "", err
		}
		p.Changes = append(p.Changes, c)
	}
	return p, r.Handler, nil
}

// register writes the drop-in or extends the template.
func (d Distribution) register(name string, before []byte, version int, r Registration, h handler) (Change, error) {
	if path.Base(name) == dropIn {
		return Change{Path: name, Before: before, After: []byte(fresh(version, r, h, false))}, nil
	}
	if r.Default {
		return Change{}, fmt.Errorf("a template of %s cannot set the default runtime, its base has that table: put `default-runtime: %s` into %s and install without --set-default",
			d.Name, r.Handler, d.ConfigFile)
	}
	stripped, err := strip(before)
	if err != nil {
		return Change{}, fmt.Errorf("%s: %w", name, err)
	}
	runtimes := []string{"plugins", criPlugin(version, nil, Version{}), "containerd", "runtimes"}
	if before == nil {
		stripped = []byte(baseTemplate)
	}
	for _, quoted := range []string{r.Handler + "]", `"` + r.Handler + `"]`, `'` + r.Handler + `']`} {
		if bytes.Contains(stripped, []byte("runtimes."+quoted)) {
			return Change{}, fmt.Errorf("%s: %w: it has a table for %q: choose another --handler, or remove that table", name, ErrTaken, r.Handler)
		}
	}
	after := append(bytes.Clone(stripped), appended(stripped, h.tables(runtimes, r.Handler))...)
	return installed(name, before, stripped, after), nil
}

// toolkit says why the handler's name is not free: the generated configuration has it
// already, or k3s would make it of NVIDIA's runtime at its next start.
func (h Host) toolkit(d Distribution, generated []*file, name string) (string, error) {
	if f := holder(generated, name); f != nil {
		runtime := table(f.cri, "containerd", "runtimes", name)
		kind, _ := runtime["runtime_type"].(string)
		where, _ := runtime["runtime_path"].(string)
		if !isOurs(kind, where) {
			return fmt.Sprintf("%s has a runtime %q, %s", f.name, name, describe(runtime)), nil
		}
	}
	if name != DefaultHandler {
		return "", nil
	}
	for _, p := range toolkitPaths {
		switch _, err := os.Stat(h.real(p)); {
		case err == nil:
			return fmt.Sprintf("%s makes a runtime %q of %s", d.Name, name, p), nil
		case !errors.Is(err, os.ErrNotExist):
			return "", err
		}
	}
	return "", nil
}

// UninstallDistribution plans the removal from k3s or RKE2.
func UninstallDistribution(h Host, d Distribution) (*Plan, error) {
	p := &Plan{Host: h, Restart: d.restart()}
	for _, name := range d.candidates() {
		before, err := h.read(name)
		if err != nil {
			return nil, err
		}
		c, err := h.removed(name, before)
		if err != nil {
			return nil, err
		}
		if c.changes() {
			p.Changes = append(p.Changes, c)
		}
	}
	return p, h.explain(p)
}

// Kind is a cluster configuration for kind whose nodes have the shim of this host and,
// where the host's Docker runs the shim or NVIDIA's runtime by default, the GPUs.
func Kind(r Registration) (string, error) {
	if err := r.validate(); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(`kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
- role: control-plane
  extraMounts:
`)
	for _, name := range []string{ShimName, CtlName} {
		fmt.Fprintf(&b, "  - hostPath: %s\n    containerPath: %s\n    readOnly: true\n",
			quote(path.Join(r.BinDir, name)), quote(path.Join(DefaultBinDir, name)))
	}
	b.WriteString(`  # All GPUs for the node, where the runtime that starts it accepts volume mounts.
  - hostPath: /dev/null
    containerPath: /var/run/nvidia-container-devices/all
containerdConfigPatches:
# kind leaves a patch out whose version is not that of the node's configuration.
`)
	inner := r
	inner.BinDir = DefaultBinDir
	for _, version := range []int{2, 3} {
		section := []string{"plugins", criPlugin(version, nil, Version{}), "containerd"}
		h := handler{runtimeType: stockType, runtimePath: inner.shim()}
		text := fmt.Sprintf("version = %d\n", version)
		if r.Default {
			text += fmt.Sprintf("[%s]\n  default_runtime_name = %q\n", dotted(section), r.Handler)
		}
		text += h.tables(append(section, "runtimes"), r.Handler)
		b.WriteString("- |-\n")
		for _, l := range lines([]byte(text)) {
			b.WriteString("  " + l)
		}
	}
	return b.String(), nil
}
