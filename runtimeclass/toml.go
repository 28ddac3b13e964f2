package runtimeclass

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
)

// handlers holds the handlers to register: the new one and those of earlier installations.
type handlers struct {
	names []string
	// byDefault is the handler to make the default; "" for none.
	byDefault string
}

// handlers returns the handlers to register in place of those that earlier installations put into
// files. keep reports whether an earlier handler can stay.
func (o Options) handlers(texts [][]byte, keep func(name string) bool) handlers {
	h := handlers{names: []string{o.Registration.Handler}, byDefault: ownDefault(texts)}
	for _, name := range ownHandlers(texts...) {
		if !slices.Contains(h.names, name) && keep(name) {
			h.names = append(h.names, name)
		}
	}
	slices.Sort(h.names)
	switch {
	case o.Registration.Default:
		h.byDefault = o.Registration.Handler
	case o.DropDefault || !slices.Contains(h.names, h.byDefault):
		h.byDefault = ""
	}
	return h
}

func textsOf(files []tomlFile) (texts [][]byte) {
	for _, f := range files {
		texts = append(texts, f.text)
	}
	return texts
}

// ownDefault returns the default runtime that an earlier installation set in one of the files, or
// "".
func ownDefault(texts [][]byte) (name string) {
	for _, text := range texts {
		for line := range bytes.Lines(tomledit.OwnLines(text)) {
			if m, err := tomledit.Decode(line); err == nil && m["default_runtime_name"] != nil {
				name, _ = m["default_runtime_name"].(string)
			}
		}
	}
	return name
}

// ownHandlers returns the handlers in our lines of files.
func ownHandlers(texts ...[]byte) (names []string) {
	for _, text := range texts {
		// A block that cannot be parsed has no handlers: the resulting text is checked.
		config, _ := tomledit.Decode(tomledit.OwnLines(text))
		names = append(names, oursIn(config)...)
	}
	return names
}

// fileOf returns the file with that name, as one of files, which the daemon reads.
func (h Host) fileOf(files []tomlFile, name string) (tomlFile, error) {
	f, err := h.loadFile(name, false)
	if i := slices.IndexFunc(files, func(loaded tomlFile) bool { return loaded.name == f.name }); err == nil && i >= 0 {
		return files[i], nil
	}
	if err != nil || !h.mergesFirst() {
		return f, err
	}
	if i := slices.IndexFunc(files, func(f tomlFile) bool { return len(f.config) > 0 }); i >= 0 {
		f.version, f.sections, f.plugin = files[i].version, files[i].sections, files[i].plugin
	}
	return f, nil
}

func (p *Plan) registerInTOML(o Options, list handlers, files []tomlFile, name string, form Runtime) (none edited, err error) {
	p.byDefault = list.byDefault
	f, err := p.Host.fileOf(files, name)
	if err != nil {
		return none, err
	}
	body := ""
	if len(f.original) == 0 {
		body = fmt.Sprintf("version = %d\n", f.version)
	}
	runtimes := []string{"plugins", f.plugin, "containerd", "runtimes"}
	present := tomledit.Table(f.cri(), "containerd", "runtimes")
	current, _ := tomledit.Table(f.cri(), "containerd")["default_runtime_name"].(string)

	// containerd 1.7 drops its built-in runtime if a file defines another one.
	stock := cmp.Or(current, "runc")
	if f.version <= 2 && !p.Host.Daemon.AtLeast(2, 0, 0) && len(present) == 0 && !slices.Contains(list.names, stock) {
		body += Runtime{Type: stockType}.tables(f.plugin, stock)
		p.note("the runtime %q is added too, because containerd 1.7 drops its built-in runtime if a file names one", stock)
	}
	text := tomledit.WithLineEnd(f.original)
	for _, handler := range list.names {
		body += form.tables(f.plugin, handler)
		if old := present[handler]; old != nil {
			text = tomledit.SwitchOff(text, append(slices.Clone(runtimes), handler))
			delete(present, handler)
			p.note("the runtime %q (%s) is commented out until uninstall", handler, describe(old))
		}
	}
	// added has all settings to add; body has those for the block.
	added := body
	if name := list.byDefault; name != "" && current != name {
		plugin := f.defaultPlugin()
		added += defaultTable(plugin, name)
		var found bool
		if text, found = tomledit.Set(text, []string{"plugins", plugin, "containerd"}, "default_runtime_name", name); !found {
			body = added
		}
	}
	after := f.text
	if body != "" || !bytes.Equal(text, f.original) {
		after = slices.Concat(text, []byte(tomledit.Block(body)))
	}
	if err := tomledit.Check(after, f.config, added); err != nil {
		return none, fmt.Errorf("%s: the tables of this file cannot be extended by further lines (%w): add by hand\n%s", name, err, added)
	}
	return edited{configFile: f.configFile, after: after, handler: o.Registration.Handler}, nil
}
