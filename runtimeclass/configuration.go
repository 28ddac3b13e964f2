package runtimeclass

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
)

// Runtime is one handler in a containerd configuration.
type Runtime struct {
	// Type and Path are runtime_type and runtime_path.
	Type, Path string
	// Options is the options table; nil if there is none.
	Options map[string]any
}

// Ours reports whether the handler starts this project's shim.
func (r Runtime) Ours() bool {
	return r.Type == RuntimeType || path.Base(r.Type) == ShimName || path.Base(r.Path) == ShimName
}

// Configuration is the part of containerd's configuration about runtimes.
type Configuration struct {
	// Runtimes has the runtimes by handler. Default is the default handler: runc if none is set.
	Runtimes map[string]Runtime
	Default  string
	// CRIDisabled is true if the plugin that serves Kubernetes is disabled.
	CRIDisabled bool
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
	// plugin is the plugin whose section has the runtimes.
	plugin string
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
	return tomlFile{file, config, version, criPlugin(version, config, h.Daemon), imports}, nil
}

// cri returns the section of the plugin that has the runtimes; nil if there is none.
func (f tomlFile) cri() map[string]any { return tomledit.Table(f.config, "plugins", f.plugin) }

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
	return out, nil
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
		t, ok := v.(map[string]any)
		if !ok {
			continue
		}
		r := Runtime{Options: tomledit.Table(t, "options")}
		r.Type, _ = t["runtime_type"].(string)
		r.Path, _ = t["runtime_path"].(string)
		c.Runtimes[name] = r
	}
	return c
}

// The plugins that have held the runtime handlers, oldest first.
const (
	criV1 = "cri"
	criV2 = "io.containerd.grpc.v1.cri"
	criV3 = "io.containerd.cri.v1.runtime"
)

// criPlugin returns the plugin whose section holds the runtime handlers, given the version of the
// configuration file. containerd 2.0 to 2.2 do not migrate sections with older names in a file
// without a version, which counts as version 1.
func criPlugin(version int, config map[string]any, daemon semver.Version) string {
	has := func(plugin string) bool { return tomledit.Table(config, "plugins", plugin) != nil }
	switch {
	case version >= 3:
		return criV3
	case version == 2:
		return criV2
	case !daemon.Known() && has(criV3), daemon.AtLeast(2, 0, 0) && !daemon.AtLeast(2, 3, 0):
		return criV3
	case !daemon.AtLeast(2, 0, 0), has(criV1):
		return criV1
	case has(criV2):
		return criV2
	}
	return criV3
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
