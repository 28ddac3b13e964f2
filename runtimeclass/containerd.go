package runtimeclass

import (
	"path"
	"slices"
	"strings"
)

// DropInName is the name of our file in a directory of imports. It comes after names that begin
// with digits, such as 99-nvidia.toml of NVIDIA's toolkit: the last one wins.
const DropInName = "nvidia-shim.toml"

// mergesImports reports whether the daemon merges the tables of imported files. containerd before
// 2.1 replaces a plugin's whole section by that of the last file that has one (containerd issue
// 5837).
func (h Host) mergesImports() bool { return h.Daemon.AtLeast(2, 1, 0) }

// registerContainerd registers the handler in containerd's configuration: in a drop-in file if the
// main file imports a directory and the daemon merges what it finds there, otherwise in a block in
// the file that counts.
func (p *Plan) registerContainerd(o Options) error {
	h, r := p.Host, o.Registration
	files, err := h.load(o.ConfigFile, false)
	if err != nil {
		return err
	}
	main, config := files[0], effective(files)
	form, why := chooseForm(r, h.Daemon, config.cgroupOptions())
	p.note("%s", why)
	if config.CRIDisabled {
		p.note("disabled_plugins switches CRI off in this configuration: Kubernetes cannot use this containerd before that line is gone")
	}
	target := h.fileToEdit(files)
	owner, present := holder(files, r.Handler)
	if present != nil && owner != target {
		return taken(r.Handler, owner, present, adviceRemove)
	}
	if present != nil && !r.Replace {
		return taken(r.Handler, owner, present, adviceReplace)
	}
	drop := main.dropIn()
	switch {
	// A runtime that is replaced would keep its options, since imports are merged key by key, and a
	// BinaryName among them would inject a second time.
	case drop != "" && h.mergesImports() && present == nil:
		target = drop
		p.note("%s imports %s: a file there, and no edit", main.name, path.Dir(drop))
	case main.text == nil:
		p.note("there is no %s: it is made, of version %d", target, newVersion(h.Daemon))
	case drop != "" && !h.mergesImports():
		p.note("%s is edited, because containerd before 2.1 does not merge what it imports", target)
	}
	return p.registerInTOML(o, target, form)
}

// fileToEdit is the file whose runtimes count: the main one if the daemon merges what it imports,
// otherwise the last with a section for them.
func (h Host) fileToEdit(files []tomlFile) string {
	name := files[0].name
	for _, f := range files {
		if f.cri() != nil && !h.mergesImports() {
			name = f.name
		}
	}
	return name
}

// holder returns the last file with a runtime of that name, and the runtime; nil if there is none.
func holder(files []tomlFile, name string) (file string, runtime map[string]any) {
	for _, f := range slices.Backward(files) {
		if r := table(f.cri(), "containerd", "runtimes", name); r != nil {
			return f.name, r
		}
	}
	return "", nil
}

// dropIn is the path of our file in the first directory that a file imports as a whole.
func (f tomlFile) dropIn() string {
	for _, pattern := range f.imports {
		name := path.Join(path.Dir(pattern), DropInName)
		if ok, err := path.Match(pattern, name); ok && err == nil && !strings.ContainsAny(path.Dir(pattern), "*?[") {
			return name
		}
	}
	return ""
}
