package runtimeclass

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
)

// containerd is a containerd that belongs to no other daemon.
type containerd struct{}

func (containerd) daemon() Daemon {
	return Daemon{
		Name: Containerd, Title: "containerd", Process: "containerd", Config: DefaultContainerdConfig, IsContainerd: true,
		// A node of kind is a container with a containerd.
		Signs:       slices.Concat([]string{"/kind/version"}, inServicePath("containerd"), []string{DefaultContainerdConfig}),
		Programs:    inServicePath("containerd"),
		ProgramDirs: []string{"/opt/bin", "/var/lib/k0s/bin", "/snap/microk8s/current/bin"},
		Version:     "2.1.4", Units: []string{"containerd"}, State: "/run/containerd",
	}
}

// owns is false: see Owner.
func (containerd) owns(procfs.Process) bool { return false }

func (containerd) runtimes(h Host, file string) (map[string]Runtime, error) {
	c, err := ReadConfiguration(h, file)
	return c.Ours(), err
}

// files takes out the runtimes that the installation registered, also those without our marks.
// Others were written by an operator: they stay, and keep the programs.
func (containerd) files(p *Plan, o Options, but string) ([]configFile, error) {
	loaded, err := p.Host.load(o.ConfigFile, false)
	if err == nil && p.registered(o) {
		own := append(ownHandlers(textsOf(loaded)...), p.handlers(o)...)
		if but != "" || len(own) == 0 {
			own = []string{o.Registration.Handler}
		}
		isOther := func(name string) bool { return !slices.Contains(own, name) }
		names := slices.DeleteFunc(unmarked(loaded), isOther)
		if but == "" { // otherwise install writes these again
			names = append(names, marked(loaded)...)
			p.startedByHand = startedFrom(loaded, o.Registration.BinDir, isOther)
			p.ownDefault = cmp.Or(ownDefault(textsOf(loaded)), unmarkedDefault(loaded, names))
		}
		err = takeOut(loaded, names)
	}
	var files []configFile
	for _, f := range loaded {
		files = append(files, f.configFile)
	}
	return files, err
}

// register adds the handler in a drop-in file if the main file imports a directory and the daemon
// merges what it finds there, otherwise in a block in the file whose runtimes take effect.
func (containerd) register(p *Plan, o Options) (none edited, err error) {
	h := p.Host
	files, err := h.load(o.ConfigFile, false)
	if err != nil {
		return none, err
	}
	stays, err := p.adopt(&o, files)
	if err != nil {
		return none, err
	}
	p.kept = unmarked(files)
	main, config := files[0], effective(files)
	r := o.Registration
	form, why := chooseForm(r, h.Daemon, config.cgroupOptions())
	if config.CRIDisabled {
		p.note("disabled_plugins switches CRI off in this configuration: Kubernetes cannot use this containerd before that line is gone")
	}
	drop := main.dropIn()
	target := h.fileToEdit(files)
	switch {
	case stays != "":
		target = stays
	case drop != "" && h.mergesImports():
		target = drop
		p.note("%s imports %s: a file there, and no edit", main.name, path.Dir(drop))
	case main.text == nil:
		p.note("there is no %s: it is made, of version %d", target, newVersion(h.Daemon))
	case drop != "":
		p.note("%s is edited, because containerd before 2.1 does not merge what it imports", target)
	}
	texts := textsOf(files)
	list := o.handlers(texts, func(string) bool { return true })
	if stays != "" {
		list.names = slices.DeleteFunc(list.names, func(name string) bool { return name == r.Handler })
	}
	replace := r.Replace || slices.Contains(ownHandlers(texts...), r.Handler)
	for _, f := range files {
		for _, handler := range list.names {
			present := tomledit.Table(f.cri(), "containerd", "runtimes", handler)
			switch {
			case present == nil:
			case handler == r.Handler && !replace:
				return none, taken(handler, f.name, present, adviceReplace)
			// registerInTOML comments it out, or the target replaces the whole section that has it.
			case f.name == target, h.Daemon.Known() && !h.mergesImports():
			case !overrides(target, main.name, f.name, present):
				return none, taken(handler, f.name, present, adviceRemove)
			default:
				form, why = r.override(config.cgroupOptions()), "runtime_path and BinaryName, because the options of that runtime stay"
				p.note("the runtime %q of %s (%s) is overridden until uninstall", handler, f.name, describe(present))
			}
		}
	}
	p.note("%s", why)
	return p.registerInTOML(o, list, files, target, form)
}

func (c containerd) restart(Host, bool) Restart {
	return Restart{Verb: "restart", Units: c.daemon().Units}
}

// byHand returns what files found, or for another daemon all that the configuration has.
func (c containerd) byHand(p *Plan, o Options) []string {
	if o.Target == Containerd {
		return p.startedByHand
	}
	ours, _ := c.runtimes(p.Host, DefaultContainerdConfig) // a daemon whose file cannot be read starts nothing
	return named(DefaultContainerdConfig, ours)
}

// mergesImports reports whether the daemon merges the tables of imported files. containerd before
// 2.1 replaces a plugin's whole section with that of the last file that has one (containerd issue
// 5837).
func (h Host) mergesImports() bool { return h.Daemon.AtLeast(2, 1, 0) }

// overrides reports whether a file with Registration.override wins over another file's runtime.
func overrides(name, main, owner string, runtime map[string]any) bool {
	return runtime["runtime_type"] == stockType && (owner == main || path.Dir(owner) == path.Dir(name) && owner < name)
}

// fileToEdit returns the file whose runtimes take effect: the main file if the daemon merges what
// it imports, otherwise the last file with a section for them.
func (h Host) fileToEdit(files []tomlFile) string {
	name := files[0].name
	for _, f := range files {
		if f.cri() != nil && !h.mergesImports() {
			name = f.name
		}
	}
	return name
}

// dropIn returns the path of our file in the first directory that the file imports as a whole, or
// "".
func (f tomlFile) dropIn() string {
	for _, pattern := range f.imports {
		name := path.Join(path.Dir(pattern), DropInName)
		if ok, err := path.Match(pattern, name); ok && err == nil && !strings.ContainsAny(path.Dir(pattern), "*?[") {
			return name
		}
	}
	return ""
}
