package runtimeclass

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
)

// A Distribution of Kubernetes brings its own containerd and writes its configuration at each
// start, from a template.
type Distribution struct {
	// Name is "k3s" or "rke2".
	Name string
	// Home is there if the distribution is installed. Dir holds config.toml and the templates.
	Home, Dir string
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
		Name: "k3s", Home: "/var/lib/rancher/k3s", Dir: "/var/lib/rancher/k3s/agent/etc/containerd",
		Units: []string{"k3s", "k3s-agent"}, ConfigFile: "/etc/rancher/k3s/config.yaml",
		Programs: []string{"/var/lib/rancher/k3s/data/current/bin/containerd"},
	},
	"rke2": {
		Name: "rke2", Home: "/var/lib/rancher/rke2", Dir: "/var/lib/rancher/rke2/agent/etc/containerd",
		Units: []string{"rke2-server", "rke2-agent"}, ConfigFile: "/etc/rancher/rke2/config.yaml",
		Programs: []string{"/var/lib/rancher/rke2/bin/containerd", "/var/lib/rancher/rke2/data/*/bin/containerd"},
	},
}

// k3sHandler is used if k3s or RKE2 make a handler "nvidia" of NVIDIA's own runtime.
const k3sHandler = "nvidia-shim"

// toolkitPaths are where k3s and RKE2 look for NVIDIA's runtime, besides PATH.
var toolkitPaths = []string{
	"/usr/local/nvidia/toolkit/nvidia-container-runtime", "/usr/bin/nvidia-container-runtime",
	"/usr/local/bin/nvidia-container-runtime",
}

// baseTemplate is a template that changes nothing. It is outside our markers: k3s copies them into
// the configuration, and all of its own would be between them.
const baseTemplate = "{{ template \"base\" . }}\n"

// files are those that an installation may write.
func (d Distribution) files() []string {
	return []string{
		path.Join(d.Dir, templateV3), path.Join(d.Dir, templateV2), path.Join(d.Dir, dropInDir, dropInName),
	}
}

// installDistribution plans the registration with k3s or RKE2: a drop-in if the generated
// configuration imports the directory and its containerd merges it, else a block at the end of the
// template. Unless the operator named the handler, it gives way to one of NVIDIA's runtime.
func installDistribution(h Host, d Distribution, r Registration, named bool) (Plan, error) {
	if _, err := os.Stat(h.real(d.Home)); err != nil {
		return Plan{}, fmt.Errorf("%s is not on this host: there is no %s", d.Name, d.Home)
	}
	generated, err := h.load(path.Join(d.Dir, "config.toml"), false)
	if err != nil {
		return Plan{}, err
	}
	// k3s brings another containerd with each of its own versions: the form that all of them serve.
	form := handler{stockType, r.shim(), effective(generated).SystemdCgroup()}
	notes := []string{fmt.Sprintf("%s: runtime_type %q with runtime_path, which each containerd that %s brings can serve", d.Name, stockType, d.Name)}
	why, err := h.k3sTaken(d, generated, r.Handler)
	if err != nil {
		return Plan{}, err
	}
	if why != "" {
		if named || r.Handler == k3sHandler {
			return Plan{}, fmt.Errorf("%s: use another --handler", why)
		}
		r.Handler = k3sHandler
		notes = append(notes, fmt.Sprintf("%s: the handler is %q here, for a RuntimeClass with that handler (nvidia-shimctl manifest --handler %s)", why, k3sHandler, k3sHandler))
	}
	target, why := h.k3sFile(d, generated[0])
	if why != "" {
		notes = append(notes, why)
	}
	var edited []Change
	if path.Base(target) == dropInName {
		edited, _, err = h.registered(target, r, form)
	} else {
		edited, err = h.templateExtended(d, target, r, form)
	}
	if err != nil {
		return Plan{}, err
	}
	restored, others, err := h.restored(d.files(), target)
	return Plan{
		Host: h, Handler: r.Handler, Changes: slices.Concat(restored, edited), Notes: slices.Concat(notes, others),
		Restart: Restart{"restart", d.Units},
	}, err
}

// uninstallDistribution plans the removal from k3s or RKE2.
func uninstallDistribution(h Host, d Distribution) (Plan, error) {
	changes, notes, err := h.restored(d.files(), "")
	return Plan{Host: h, Changes: changes, Notes: notes, Restart: Restart{"restart", d.Units}}, err
}

// The templates, by the version of the configuration that k3s makes of them, and the directory that
// the latter imports.
const (
	templateV2 = "config.toml.tmpl"
	templateV3 = "config-v3.toml.tmpl"
	dropInDir  = "config-v3.toml.d"
)

// k3sFile is the file to register in, and a note about the choice.
func (h Host) k3sFile(d Distribution, generated configFile) (name, note string) {
	if generated.text != nil && generated.version < 3 {
		return path.Join(d.Dir, templateV2), ""
	}
	name = path.Join(d.Dir, templateV3)
	drop := generated.dropIn()
	switch {
	case drop != path.Join(d.Dir, dropInDir, dropInName):
		return name, ""
	case !h.mergesImports():
		return name, fmt.Sprintf("the template is used and not %s, because containerd %s may not merge what it imports", path.Dir(drop), h.Daemon)
	}
	return drop, ""
}

// templateExtended returns the changes that append the handler to a template, or make one.
func (h Host) templateExtended(d Distribution, name string, r Registration, form handler) ([]Change, error) {
	if r.Default {
		return nil, fmt.Errorf("a template of %s cannot set the default runtime, its base has that table: put `default-runtime: %s` into %s and install without --set-default",
			d.Name, r.Handler, d.ConfigFile)
	}
	before, stripped, err := h.readStripped(name)
	if err != nil {
		return nil, err
	}
	for _, quoted := range []string{r.Handler + "]", `"` + r.Handler + `"]`, `'` + r.Handler + `']`} {
		if bytes.Contains(stripped, []byte("runtimes."+quoted)) {
			return nil, taken(r.Handler, name, "a table of the template", adviceRemove)
		}
	}
	if before == nil {
		stripped = []byte(baseTemplate)
	}
	plugin := criV3
	if path.Base(name) == templateV2 {
		plugin = criV2
	}
	body := form.tables([]string{"plugins", plugin, "containerd", "runtimes"}, r.Handler)
	return h.edited(name, before, stripped, slices.Concat(withLineEnd(stripped), []byte(block(body))))
}

// k3sTaken says why the handler's name is taken, if it is: the generated configuration has it
// already, or k3s makes it of NVIDIA's runtime at its next start.
func (h Host) k3sTaken(d Distribution, generated []configFile, handler string) (string, error) {
	if owner, ok := holder(generated, handler); ok && !effective(generated).Runtimes[handler].Ours() {
		return fmt.Sprintf("%s has a runtime %q, %s", owner.name, handler, describe(owner.runtime(handler))), nil
	}
	if handler != DefaultHandler {
		return "", nil
	}
	for _, p := range toolkitPaths {
		_, err := os.Stat(h.real(p))
		if err == nil {
			return fmt.Sprintf("%s makes a runtime %q of %s", d.Name, handler, p), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", nil
}
