package runtimeclass

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
)

// Configuration is the part of containerd's configuration about runtimes.
type Configuration struct {
	// Runtimes has the runtimes by handler. Default is the default handler: runc if none is set.
	Runtimes map[string]Runtime
	Default  string
	// CRIDisabled is true if the plugin that serves Kubernetes is disabled.
	CRIDisabled bool
}

// Ours returns the runtimes that start this project's shim.
func (c Configuration) Ours() map[string]Runtime {
	ours := maps.Clone(c.Runtimes)
	maps.DeleteFunc(ours, func(_ string, r Runtime) bool { return !r.Ours() })
	return ours
}

// cgroupOptions returns the option SystemdCgroup of the default runtime; nil if it is not set.
func (c Configuration) cgroupOptions() map[string]any {
	v, ok := c.Runtimes[c.Default].Options["SystemdCgroup"].(bool)
	if !ok {
		return nil
	}
	return map[string]any{"SystemdCgroup": v}
}

// ReadConfiguration reads a configuration with its imports. A missing file is an empty
// configuration.
func ReadConfiguration(h Host, name string) (Configuration, error) {
	files, err := h.load(name, true)
	if err != nil {
		return Configuration{}, err
	}
	return effective(files), nil
}

type tomlFile struct {
	configFile
	config  map[string]any
	version int
	// sections are the plugins whose sections the daemon reads runtimes from: a runtimes table of
	// an earlier one hides those of later ones. plugin is the one to add a runtime to.
	sections []string
	plugin   string
	// imports are patterns of absolute paths.
	imports []string
}

// loadFile reads one file, with our own lines if installed is true. Imports are relative to the
// path that containerd is given, which may be a link.
func (h Host) loadFile(name string, installed bool) (tomlFile, error) {
	file, err := h.readConfigFile(name)
	if err != nil {
		return tomlFile{}, err
	}
	text := file.original
	if installed {
		text = file.text
	}
	config, err := tomledit.Decode(text)
	if err != nil {
		return tomlFile{}, fmt.Errorf("%s: %w", name, err)
	}
	version, err := configVersion(config)
	if err != nil {
		return tomlFile{}, fmt.Errorf("%s: %w", name, err)
	}
	if len(text) == 0 {
		version = newVersion(h.Daemon)
	}
	var imports []string
	list, _ := config["imports"].([]any)
	for _, v := range list {
		p, _ := v.(string)
		if p != "" && !path.IsAbs(p) {
			p = path.Join(path.Dir(name), p)
		}
		if p != "" {
			imports = append(imports, path.Clean(p))
		}
	}
	sections := criSections(version, config, h.Daemon)
	f := tomlFile{file, config, version, sections, "", imports}
	f.plugin = h.pluginOf([]tomlFile{f})
	return f, nil
}

// cri returns the section with the runtimes as the daemon reads it; nil if there is none.
// containerd copies from the section of its 1.x releases what the newer one lacks, key by key, so
// the runtimes are those of one section. The tables below the result are those of the file.
func (f tomlFile) cri() map[string]any {
	var cri map[string]any
	for _, section := range slices.Backward(f.sections) {
		table := tomledit.Table(f.config, "plugins", section)
		if table == nil {
			continue
		}
		if cri == nil {
			cri = map[string]any{}
		}
		keys := maps.Clone(tomledit.Table(cri, "containerd"))
		maps.Copy(cri, table)
		if keys != nil {
			maps.Copy(keys, tomledit.Table(table, "containerd"))
			cri["containerd"] = keys
		}
	}
	return cri
}

// defaultPlugin returns the plugin in whose section the name of the default runtime takes effect.
func (f tomlFile) defaultPlugin() string {
	for _, section := range f.sections {
		if tomledit.Table(f.config, "plugins", section, "containerd")["default_runtime_name"] != nil {
			return section
		}
	}
	return f.plugin
}

// pluginOf returns the plugin to add a runtime to, so that it hides no runtime of the files, which
// have the same sections.
func (h Host) pluginOf(files []tomlFile) string {
	sections := files[0].sections
	for _, section := range sections {
		for _, f := range files {
			// guard: installation: no runtime hidden
			if tomledit.Table(f.config, "plugins", section, "containerd", "runtimes") != nil {
				return section
			}
		}
	}
	old := sections[len(sections)-1]
	switch {
	case files[0].version >= 3:
		return sections[0]
	// containerd 2 takes the snapshotter from an old section only if that has runtimes.
	case h.Daemon.AtLeast(2, 0, 0) && tomledit.Table(files[0].config, "plugins", old, "containerd") != nil:
		return sections[0]
	case files[0].version == 2: // an older daemon can read it too
		return old
	}
	for _, section := range slices.Backward(sections) {
		if tomledit.Table(files[0].config, "plugins", section) != nil {
			return section
		}
	}
	return sections[0]
}

// load reads a file and its imports in containerd's order; the main file is first.
func (h Host) load(name string, installed bool) ([]tomlFile, error) {
	var out []tomlFile
	for pending := []string{name}; len(pending) > 0; pending = pending[1:] {
		f, err := h.loadFile(pending[0], installed)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(seen tomlFile) bool { return seen.name == f.name }) {
			continue
		}
		out = append(out, f)
		for _, pattern := range f.imports {
			if !strings.Contains(pattern, "*") {
				pending = append(pending, pattern)
				continue
			}
			matches, err := h.Glob(pattern)
			if err != nil {
				return nil, fmt.Errorf("%s: import %.256q: %w", f.name, pattern, err)
			}
			pending = append(pending, matches...)
		}
	}
	h.mergeSections(out)
	return out, nil
}

// mergesFirst reports whether the daemon migrates the sections of files after it has merged the
// files, and not one by one: the version of the last file then is that of all.
func (h Host) mergesFirst() bool { return h.Daemon.AtLeast(2, 0, 0) && !h.Daemon.AtLeast(2, 3, 0) }

// mergeSections gives files that the daemon merges first the version and the sections of the whole.
// A file without settings has no part in it.
func (h Host) mergeSections(files []tomlFile) {
	version := 0
	for _, f := range files {
		switch {
		case len(f.config) == 0:
		case f.version < 2: // migrated by itself
			version = 3
		default:
			version = f.version
		}
	}
	if !h.mergesFirst() || version == 0 {
		return
	}
	for i := range files {
		files[i].version, files[i].sections = version, criSections(version, files[i].config, h.Daemon)
	}
	plugin := h.pluginOf(files)
	for i := range files {
		files[i].plugin = plugin
	}
}

// effective merges files as containerd 2.1 and later do.
func effective(files []tomlFile) Configuration {
	c := Configuration{Runtimes: map[string]Runtime{}, Default: "runc"}
	cri := map[string]any{}
	for _, f := range files {
		tomledit.Merge(cri, f.cri())
		disabled, _ := f.config["disabled_plugins"].([]any)
		for _, name := range []string{criV1, criV2, criV3} {
			c.CRIDisabled = c.CRIDisabled || slices.Contains(disabled, any(name))
		}
	}
	if name, _ := tomledit.Table(cri, "containerd")["default_runtime_name"].(string); name != "" {
		c.Default = name
	}
	for name, v := range tomledit.Table(cri, "containerd", "runtimes") {
		if t, ok := v.(map[string]any); ok {
			c.Runtimes[name] = runtimeOf(t)
		}
	}
	return c
}

func runtimeOf(table map[string]any) Runtime {
	r := Runtime{Options: tomledit.Table(table, "options")}
	r.Type, _ = table["runtime_type"].(string)
	r.Path, _ = table["runtime_path"].(string)
	return r
}

// The plugins that have held the runtime handlers, oldest first.
const (
	criV1 = "cri"
	criV2 = "io.containerd.grpc.v1.cri"
	criV3 = "io.containerd.cri.v1.runtime"
)

// criSections returns the plugins whose sections of a file the daemon reads runtimes from, given
// the version of the file: a runtimes table of an earlier one hides those of later ones. containerd
// 2.3 and later read the section of 1.x up to version 3, and 2.0 to 2.2 up to version 2. Without a
// version, which counts as version 1, these do not migrate any section.
func criSections(version int, config map[string]any, daemon semver.Version) []string {
	has := func(plugin string) bool { return tomledit.Table(config, "plugins", plugin) != nil }
	v1, v2 := daemon.Known() && !daemon.AtLeast(2, 0, 0), daemon.AtLeast(2, 0, 0)
	each := daemon.AtLeast(2, 3, 0)
	switch {
	case version >= 4, version == 3 && v2 && !each:
		return []string{criV3}
	case version == 2 && v1:
		return []string{criV2}
	case version >= 2:
		return []string{criV3, criV2}
	case v2 && !each, !daemon.Known() && has(criV3):
		return []string{criV3}
	case !each:
		return []string{criV1}
	case has(criV1): // renamed to criV2
		return []string{criV3, criV1}
	}
	return []string{criV3, criV2}
}

// configVersion returns the version that a configuration file declares; 1 if it declares none.
func configVersion(config map[string]any) (int, error) {
	if config["version"] == nil {
		return 1, nil
	}
	v, ok := config["version"].(int64)
	if !ok || v < 0 || v > 4 {
		return 0, fmt.Errorf("version %v of containerd's configuration is not known: this nvidia-shimctl is too old", config["version"])
	}
	return max(1, int(v)), nil
}

// newVersion returns the version for a new configuration file. containerd 1.7 supports at most 2.
func newVersion(daemon semver.Version) int {
	if daemon.AtLeast(2, 0, 0) {
		return 3
	}
	return 2
}

// readConfigFile reads a file in which comments mark what an installation changed.
func (h Host) readConfigFile(name string) (configFile, error) {
	name, err := h.Follow(name)
	if err != nil {
		return configFile{}, err
	}
	text, err := h.Read(name)
	if err != nil {
		return configFile{}, err
	}
	original, err := tomledit.Strip(text)
	if err != nil {
		return configFile{}, fmt.Errorf("%s: %w", name, err)
	}
	return configFile{name, text, original}, nil
}

// holder returns the last file with a runtime with that name, and the runtime; nil if there is
// none.
func holder(files []tomlFile, name string) (file string, runtime map[string]any) {
	for _, f := range slices.Backward(files) {
		if r := tomledit.Table(f.cri(), "containerd", "runtimes", name); r != nil {
			return f.name, r
		}
	}
	return "", nil
}

// sectionNames are the plugins that can have runtimes.
var sectionNames = []string{criV1, criV2, criV3}

// oursIn returns the runtimes in a configuration that start this shim.
func oursIn(config map[string]any) (names []string) {
	for _, section := range sectionNames {
		runtimes := tomledit.Table(config, "plugins", section, "containerd", "runtimes")
		for _, name := range slices.Sorted(maps.Keys(runtimes)) {
			if runtimeOf(tomledit.Table(runtimes, name)).Ours() && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
