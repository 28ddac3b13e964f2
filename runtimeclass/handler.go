package runtimeclass

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

func taken(handler, file string, runtime any, advice string) error {
	return fmt.Errorf("a runtime named %q already exists in %s (%s): use another --handler, or %s", handler, file, describe(runtime), advice)
}

const (
	adviceReplace = "--replace to override it (uninstall restores it)"
	adviceRemove  = "remove it there"
)

// chooseForm returns how the handler refers to the shim, and the reason.
func chooseForm(r Registration, daemon semver.Version, options map[string]any) (Runtime, string) {
	byPath := Runtime{stockType, r.shim(), options}
	byName := Runtime{Type: RuntimeType}
	switch {
	case !daemon.Known():
		return byPath, "the version of containerd is not known: " +
			"runtime_type \"" + stockType + "\" with runtime_path works with every version from 1.7 on"
	case !daemon.AtLeast(1, 7, 0):
		// containerd 1.6 ignores runtime_path for a pod's sandbox (containerd issue 8207): the
		// handler would silently run the stock shim.
		why := fmt.Sprintf("containerd %s: runtime_type %q, because before 1.7 a pod ignores runtime_path", daemon, RuntimeType)
		if !r.inPath() {
			why += fmt.Sprintf("; pods fail until %s is in the PATH of containerd's service", r.BinDir)
		}
		return byName, why
	case !daemon.AtLeast(2, 4, 0):
		return byPath, fmt.Sprintf("containerd %s: runtime_type %q with runtime_path, because before 2.4 only that type is asked for its features and can run pods with hostUsers: false", daemon, stockType)
	case !r.inPath():
		return byPath, fmt.Sprintf("containerd %s: runtime_path, because %s is not in the PATH of services", daemon, r.BinDir)
	}
	why := fmt.Sprintf("containerd %s: runtime_type %q, which needs no options", daemon, RuntimeType)
	if options["SystemdCgroup"] == true {
		why += "; the shim derives the cgroup manager, systemd, from the container's cgroup path"
	}
	return byName, why
}

// override returns a handler that overrides another file's runtime. That runtime's options stay,
// because containerd merges imports key by key. BinaryName is set to runc: with NVIDIA's the GPUs
// would be injected twice.
func (r Registration) override(options map[string]any) Runtime {
	all := map[string]any{"BinaryName": "runc"}
	maps.Copy(all, options)
	return Runtime{stockType, r.shim(), all}
}

// tables returns the handler as TOML, in the section of a plugin.
func (r Runtime) tables(plugin, name string) string {
	base := fmt.Sprintf("plugins.%q.containerd.runtimes.%s", plugin, name)
	text := fmt.Sprintf("[%s]\n  runtime_type = %q\n", base, r.Type)
	if r.Path != "" {
		text += fmt.Sprintf("  runtime_path = %q\n", r.Path)
	}
	if r.Options != nil {
		text += fmt.Sprintf("  [%s.options]\n", base)
	}
	for _, key := range slices.Sorted(maps.Keys(r.Options)) {
		text += fmt.Sprintf("    %s = %#v\n", key, r.Options[key])
	}
	return text
}

func defaultTable(plugin, name string) string {
	return fmt.Sprintf("[plugins.%q.containerd]\n  default_runtime_name = %q\n", plugin, name)
}

func describe(runtime any) string {
	return fmt.Sprintf("%.256s", bytes.TrimSpace(encodeJSON(runtime, "")))
}

// Runtime is one handler in a containerd configuration.
type Runtime struct {
	// Type and Path are runtime_type and runtime_path.
	Type, Path string
	// Options is the options table; nil if there is none.
	Options map[string]any
}

// Ours reports whether the handler starts this project's shim.
func (r Runtime) Ours() bool {
	return r.Type == RuntimeType || path.Base(r.Type) == version.Shim || path.Base(r.Path) == version.Shim
}

// named returns the names of runtimes, each behind the file that has them.
func named(file string, runtimes map[string]Runtime) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(runtimes)) {
		list = append(list, file+": "+name)
	}
	return list
}
