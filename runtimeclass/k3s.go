package runtimeclass

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
)

const rancherDir = "/var/lib/rancher"

// distribution is a distribution of Kubernetes that ships its own containerd and generates its
// configuration from a template at each start.
type distribution struct {
	containerd
	name, title string
	// units are the systemd units of the server and the agent, one of which runs on a node.
	units []string
	// programs are patterns of the paths of its containerd, and dirs of the directories of its
	// programs.
	programs, dirs []string
}

var k3s = distribution{
	name: "k3s", title: "k3s", units: []string{"k3s", "k3s-agent"},
	programs: []string{rancherDir + "/k3s/data/current/bin/containerd"},
	dirs:     []string{rancherDir + "/k3s/data/*/bin"},
}

var rke2 = distribution{
	name: "rke2", title: "RKE2", units: []string{"rke2-server", "rke2-agent"},
	programs: []string{rancherDir + "/rke2/bin/containerd", rancherDir + "/rke2/data/*/bin/containerd"},
	dirs:     []string{rancherDir + "/rke2/bin", rancherDir + "/rke2/data/*/bin"},
}

// home has all files of the distribution; dir has its containerd's config.toml and the templates.
func (d distribution) home() string { return path.Join(rancherDir, d.name) }
func (d distribution) dir() string  { return path.Join(d.home(), "agent/etc/containerd") }

func (d distribution) daemon() Daemon {
	return Daemon{
		Name: d.name, Title: d.title, Process: d.name, Config: path.Join(d.dir(), "config.toml"), Generated: true, IsContainerd: true,
		Signs:    []string{path.Join(d.home(), "server/tls"), path.Join(d.home(), "agent")},
		Programs: d.programs, ProgramDirs: d.dirs,
		Units: d.units, State: "/run/k3s/containerd", Log: path.Join(d.home(), "agent/containerd/containerd.log"),
	}
}

func (d distribution) owns(containerd procfs.Process) bool {
	return strings.HasPrefix(containerd.Program, d.home()+"/")
}

func (d distribution) files(p *Plan, _ Options, _ string) ([]configFile, error) {
	var files []configFile
	for _, name := range []string{templateV3, templateV2, path.Join(dropInDir, DropInName)} {
		file, err := p.Host.readConfigFile(path.Join(d.dir(), name))
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// register adds the handler in a drop-in if the generated configuration imports the directory and its
// containerd merges it, otherwise in a block at the end of the template. Unless the operator chose the
// handler's name, it uses another name if that one is taken.
func (d distribution) register(p *Plan, o Options) (none edited, err error) {
	h, r := p.Host, &o.Registration
	if !h.Exists(d.home()) {
		return none, fmt.Errorf("%s is not on this host: there is no %s", d.name, d.home())
	}
	generated, err := h.load(d.daemon().Config, false)
	if err != nil {
		return none, err
	}
	// Each version of k3s ships a different containerd: use the form that all of them support.
	form := Runtime{stockType, r.shim(), effective(generated).cgroupOptions()}
	p.note("%s: runtime_type %q with runtime_path, which each containerd that %s brings can serve", d.name, stockType, d.name)
	written, err := d.files(p, o, "")
	if err != nil {
		return none, err
	}
	var texts [][]byte
	for _, f := range written {
		texts = append(texts, f.text)
	}
	target := p.k3sFile(d, generated[0])
	replaceable := func(handler string) bool { return h.k3sReplaceable(target, generated, handler) }
	o.Registration.Replace = r.Replace || slices.Contains(ownHandlers(texts...), r.Handler)
	why := h.k3sTaken(d, generated, r.Handler)
	switch {
	case why == "" || r.Replace && replaceable(r.Handler):
	case (o.HandlerNamed || r.Handler == k3sHandler) && replaceable(r.Handler):
		return none, fmt.Errorf("%s: use another --handler, or %s", why, adviceReplace)
	case o.HandlerNamed || r.Handler == k3sHandler:
		return none, fmt.Errorf("%s: use another --handler", why)
	default:
		r.Handler = k3sHandler
		p.note("%s: the handler is %q here, for a RuntimeClass with that handler (nvidia-shimctl manifest --handler %s)", why, k3sHandler, k3sHandler)
	}
	list := o.handlers(texts, func(name string) bool { return h.k3sTaken(d, generated, name) == "" || replaceable(name) })
	if path.Base(target) != DropInName {
		return p.registerInTemplate(o, list, target, form)
	}
	for _, handler := range list.names {
		if why := h.k3sTaken(d, generated, handler); why != "" {
			form = r.override(form.Options)
			p.note("%s: it is overridden until uninstall", why)
		}
	}
	return p.registerInTOML(o, list, generated, target, form)
}

// restart returns the units with the one that the files point to first. There are none before the
// first start.
func (d distribution) restart(h Host, _ bool) Restart {
	r := Restart{Verb: "restart"}
	switch {
	case h.Exists(path.Join(d.home(), "server/tls")):
		r.Units = d.units
	case h.Exists(path.Join(d.home(), "agent")):
		r.Units = []string{d.units[1], d.units[0]}
	}
	return r
}

func (d distribution) byHand(*Plan, Options) []string { return nil }

// k3sHandler is used if k3s or RKE2 generate a handler "nvidia" for NVIDIA's own runtime.
const k3sHandler = "nvidia-shim"

// toolkitPaths are where k3s and RKE2 look for NVIDIA's runtime, besides PATH.
var toolkitPaths = []string{
	"/usr/local/nvidia/toolkit/nvidia-container-runtime", "/usr/bin/nvidia-container-runtime",
	"/usr/local/bin/nvidia-container-runtime",
}

// The templates, by the version of the configuration that k3s generates from them, and the
// directory that a version 3 configuration imports.
const (
	templateV2 = "config.toml.tmpl"
	templateV3 = "config-v3.toml.tmpl"
	dropInDir  = "config-v3.toml.d"
)

// k3sReplaceable reports whether a file can override a runtime that k3s has or generates.
func (h Host) k3sReplaceable(name string, generated []tomlFile, handler string) bool {
	if path.Base(name) == DropInName {
		owner, present := holder(generated, handler)
		return present == nil || overrides(name, generated[0].name, owner, present)
	}
	file, err := h.readConfigFile(name)
	base := slices.ContainsFunc(toolkitPaths, h.Exists) && bytes.Contains(file.original, []byte(`template "base"`))
	return err == nil && !base && !bytes.Equal(tomledit.SwitchOff(file.original, templateTable(name, handler)), file.original)
}

// k3sTaken returns why the handler's name is taken, or "": the generated configuration already has
// it, or k3s will generate it for NVIDIA's runtime at its next start.
func (h Host) k3sTaken(d distribution, generated []tomlFile, handler string) string {
	owner, present := holder(generated, handler)
	if present != nil && !effective(generated).Runtimes[handler].Ours() {
		return fmt.Sprintf("%s has a runtime %q, %s", owner, handler, describe(present))
	}
	for _, p := range toolkitPaths {
		if handler == DefaultHandler && h.Exists(p) {
			return fmt.Sprintf("%s makes a runtime %q of %s", d.name, handler, p)
		}
	}
	return ""
}

func (p *Plan) k3sFile(d distribution, generated tomlFile) string {
	template := path.Join(d.dir(), templateV3)
	drop := generated.dropIn()
	switch {
	case generated.text != nil && generated.version < 3:
		return path.Join(d.dir(), templateV2)
	case drop != path.Join(d.dir(), dropInDir, DropInName):
		return template
	case !p.Host.mergesImports():
		p.note("the template is used and not %s, because containerd %s may not merge what it imports", path.Dir(drop), p.Host.Daemon)
		return template
	}
	return drop
}

// registerInTemplate appends the handlers to a template, or creates one.
func (p *Plan) registerInTemplate(o Options, list handlers, name string, form Runtime) (none edited, err error) {
	r := o.Registration
	if list.byDefault != "" {
		why := fmt.Sprintf("a template of %s cannot set the default runtime, its base has that table: put `default-runtime: %s` into /etc/rancher/%s/config.yaml",
			o.Target, list.byDefault, o.Target)
		if r.Default {
			return none, errors.New(why + " and install without --set-default")
		}
		p.note("%s", why)
	}
	file, err := p.Host.readConfigFile(name)
	if err != nil {
		return none, err
	}
	text := tomledit.WithLineEnd(file.original)
	if file.text == nil {
		text = []byte(baseTemplate)
	}
	for _, handler := range list.names {
		if handler != r.Handler || r.Replace {
			text = tomledit.SwitchOff(text, templateTable(name, handler))
		}
	}
	for line := range bytes.Lines(text) {
		off := bytes.HasPrefix(line, []byte(tomledit.SwitchedOff))
		if off && bytes.Contains(line, []byte("{{")) {
			return none, taken(r.Handler, name, "a table with directives of the template", adviceRemove)
		}
		for _, quoted := range []string{r.Handler + "]", `"` + r.Handler + `"]`, `'` + r.Handler + `']`} {
			if !off && bytes.Contains(line, []byte("runtimes."+quoted)) {
				return none, taken(r.Handler, name, "a table of the template", adviceReplace)
			}
		}
	}
	tables := ""
	for _, handler := range list.names {
		tables += form.tables(templatePlugin(name), handler)
	}
	return edited{configFile: file, after: slices.Concat(text, []byte(tomledit.Block(tables))), handler: r.Handler}, nil
}

func templatePlugin(name string) string {
	if path.Base(name) == templateV2 {
		return criV2
	}
	return criV3
}

func templateTable(name, handler string) []string {
	return []string{"plugins", templatePlugin(name), "containerd", "runtimes", handler}
}
