package runtimeclass

import (
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
)

// Names of the shim. containerd derives the program's name from the runtime type.
const (
	RuntimeType = "io.containerd.nvidia.v2"
	ShimName    = "containerd-shim-nvidia-v2"
	CtlName     = "nvidia-shimctl"
	stockType   = "io.containerd.runc.v2"
)

// DefaultBinDir holds the installed programs. containerd records the shim's path in
// every bundle and needs it until the container is gone, so it must be a stable one.
const DefaultBinDir = "/usr/local/bin"

// ServicePath is the PATH that systemd gives to services, and so to containerd,
// unless told otherwise.
const ServicePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ErrTaken means that another runtime has the handler's name.
var ErrTaken = errors.New("the handler's name is taken")

// Registration says how the shim is to be known.
type Registration struct {
	// Handler is its name for CRI and Docker.
	Handler string
	// BinDir is where the shim is, as the daemon sees it.
	BinDir string
	// Default makes it the runtime of containers that name none.
	Default bool
	// Replace switches off another runtime of that name in the same file, until
	// Uninstall.
	Replace bool
}

func (r Registration) validate() error {
	if err := ValidHandler(r.Handler); err != nil {
		return err
	}
	if !path.IsAbs(r.BinDir) || strings.ContainsAny(r.BinDir, "\n\r\"'\\{}") {
		return fmt.Errorf("directory %.256q of the programs is not a plain absolute path", r.BinDir)
	}
	return nil
}

func (r Registration) shim() string { return path.Join(r.BinDir, ShimName) }

// inPath tells whether a daemon with the usual PATH finds the shim by its name.
func (r Registration) inPath() bool {
	return slices.Contains(strings.Split(ServicePath, ":"), path.Clean(r.BinDir))
}

// handler is what a configuration says about one runtime handler.
type handler struct {
	runtimeType, runtimePath string
	// systemdCgroup is runc's option of this name, where it is to be set.
	systemdCgroup *bool
}

func (h handler) values() map[string]any {
	m := map[string]any{"runtime_type": h.runtimeType}
	if h.runtimePath != "" {
		m["runtime_path"] = h.runtimePath
	}
	if h.systemdCgroup != nil {
		m["options"] = map[string]any{"SystemdCgroup": *h.systemdCgroup}
	}
	return m
}

// tables is the handler as TOML, below the table runtimes.
func (h handler) tables(runtimes []string, name string) string {
	var b strings.Builder
	base := slices.Concat(runtimes, []string{name})
	fmt.Fprintf(&b, "[%s]\n  runtime_type = %q\n", dotted(base), h.runtimeType)
	if h.runtimePath != "" {
		fmt.Fprintf(&b, "  runtime_path = %q\n", h.runtimePath)
	}
	if h.systemdCgroup != nil {
		fmt.Fprintf(&b, "  [%s]\n    SystemdCgroup = %t\n", dotted(slices.Concat(base, []string{"options"})), *h.systemdCgroup)
	}
	return b.String()
}

// dotted writes a path of keys. Names of plugins are quoted, as everybody has them.
func dotted(path []string) string {
	parts := make([]string, len(path))
	for i, p := range path {
		parts[i] = p
		if strings.ContainsRune(p, '.') {
			parts[i] = `"` + p + `"`
		}
	}
	return strings.Join(parts, ".")
}

// form chooses how the handler names the shim, and says why.
func (r Registration) form(daemon Version, systemdCgroup *bool) (handler, string) {
	byPath := handler{runtimeType: stockType, runtimePath: r.shim(), systemdCgroup: systemdCgroup}
	switch {
	case !daemon.Known():
		return byPath, "the version of containerd is not known: " +
			"runtime_type \"" + stockType + "\" with runtime_path works with every version from 1.7 on"
	case !daemon.AtLeast(1, 7, 0):
		// 1.6 starts a pod's sandbox without looking at runtime_path (containerd issue
		// 8207), so the handler would be the stock one and nobody told.
		why := fmt.Sprintf("containerd %s: runtime_type %q, because before 1.7 a pod ignores runtime_path", daemon, RuntimeType)
		if !r.inPath() {
			why += fmt.Sprintf("; pods fail until %s is in the PATH of containerd's service", r.BinDir)
		}
		return handler{runtimeType: RuntimeType}, why
	case !daemon.AtLeast(2, 4, 0):
		return byPath, fmt.Sprintf("containerd %s: runtime_type %q with runtime_path, because before 2.4 only that type is asked for its features and can run pods with hostUsers: false", daemon, stockType)
	case !r.inPath():
		return byPath, fmt.Sprintf("containerd %s: runtime_path, because %s is not in the PATH of services", daemon, r.BinDir)
	}
	why := fmt.Sprintf("containerd %s: runtime_type %q, which needs no options", daemon, RuntimeType)
	if systemdCgroup != nil && *systemdCgroup {
		why += "; the shim sees from the container's cgroup path that systemd manages it"
	}
	return handler{runtimeType: RuntimeType}, why
}

// The plugins that had the runtime handlers, from the oldest on.
const (
	criV1 = "cri"
	criV2 = "io.containerd.grpc.v1.cri"
	criV3 = "io.containerd.cri.v1.runtime"
)

// criPlugin is the plugin whose section holds the runtime handlers, by the version of
// a configuration file. In a file without a version, which is one of version 1,
// containerd 2.0 to 2.2 do not migrate the sections that have older names: measured.
func criPlugin(version int, config map[string]any, daemon Version) string {
	has := func(plugin string) bool { return table(config, "plugins", plugin) != nil }
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

// configVersion is the version that a configuration file declares; 1 without.
func configVersion(config map[string]any) (int, error) {
	switch v := config["version"].(type) {
	case nil:
		return 1, nil
	case int64:
		if v >= 0 && v <= 4 {
			return max(1, int(v)), nil
		}
		return 0, fmt.Errorf("version %d of containerd's configuration is not known: this nvidia-shimctl is too old", v)
	}
	return 0, fmt.Errorf("key \"version\": %v is not a number", config["version"])
}

// edited is the outcome of register.
type edited struct {
	text []byte
	// notes say what was taken into account.
	notes []string
}

// register puts the handler into the text of a configuration file that strip has
// been over. For containerd 1.7 it adds a table for the default runtime where the file
// has none at all: that version then forgets its built-in one.
func register(text []byte, r Registration, h handler, daemon Version) (edited, error) {
	before, err := decode(text)
	if err != nil {
		return edited{}, err
	}
	version, err := configVersion(before)
	if err != nil {
		return edited{}, err
	}
	all, err := statements(text)
	if err != nil {
		return edited{}, err
	}
	section := []string{"plugins", criPlugin(version, before, daemon), "containerd"}
	addDefault := version <= 2 && !daemon.AtLeast(2, 0, 0)
	runtimes := slices.Concat(section, []string{"runtimes"})
	own := slices.Concat(runtimes, []string{r.Handler})

	var (
		out     edited
		splices []splice
		body    strings.Builder
	)
	want, err := decode(text)
	if err != nil {
		return edited{}, err
	}
	if existing := table(before, own...); existing != nil {
		if !r.Replace {
			return edited{}, fmt.Errorf("%w: %q is %s: choose another --handler, or --replace it until uninstall", ErrTaken, r.Handler, describe(existing))
		}
		for _, s := range all {
			if hasPrefix(s.path, own) {
				splices = append(splices, splice{s.start, s.end, switchOff(text[s.start:s.end])})
			}
		}
		delete(table(want, runtimes...), r.Handler)
		out.notes = append(out.notes, fmt.Sprintf("the runtime %q (%s) is switched off by comments until uninstall", r.Handler, describe(existing)))
	}

	current, _ := lookup(before, slices.Concat(section, []string{"default_runtime_name"})...).(string)
	if addDefault && len(table(before, runtimes...)) == 0 {
		name := current
		if name == "" {
			name = "runc"
		}
		if name != r.Handler {
			stock := handler{runtimeType: stockType}
			body.WriteString(stock.tables(runtimes, name))
			put(want, stock.values(), slices.Concat(runtimes, []string{name})...)
			out.notes = append(out.notes, fmt.Sprintf("the runtime %q is written out, because containerd 1.7 has no built-in runtime beside one that a file names", name))
		}
	}
	body.WriteString(h.tables(runtimes, r.Handler))
	put(want, h.values(), own...)

	if r.Default {
		put(want, r.Handler, slices.Concat(section, []string{"default_runtime_name"})...)
		in, extra := setDefault(text, all, section, current, r.Handler)
		splices = append(splices, in...)
		body.WriteString(extra)
	}
	splices = append(splices, splice{len(text), len(text), appended(text, body.String())})
	// A line without an end that is switched off is still the last one.
	out.text = apply(text, splices)

	after, err := decode(out.text)
	if err == nil && !reflect.DeepEqual(after, want) {
		err = errors.New("the result would not say what was meant")
	}
	if err != nil {
		return edited{}, fmt.Errorf("the tables of this file cannot be extended by further lines (%s): add by hand\n%s", oneLine(err), body.String())
	}
	return out, nil
}

// setDefault makes the lines for default_runtime_name: in place of the present ones,
// below the header of their table, or as a table of its own.
func setDefault(text []byte, all []statement, section []string, current, name string) (in []splice, extra string) {
	key := slices.Concat(section, []string{"default_runtime_name"})
	for _, s := range all {
		if slices.Equal(s.path, key) && !s.header {
			if current == name {
				return nil, ""
			}
			old := text[s.start:s.end]
			off := switchOff(old)
			line := fmt.Sprintf("%s = %q\n", text[s.start:s.keyEnd], name)
			if len(old) > 0 && old[len(old)-1] != '\n' {
				// The block goes before the last line of the file, which has no end.
				return []splice{{s.start, s.end, block(line) + off}}, ""
			}
			return []splice{{s.start, s.end, off + block(line)}}, ""
		}
	}
	for _, s := range all {
		if slices.Equal(s.path, section) && s.header {
			if s.end > 0 && text[s.end-1] != '\n' {
				break
			}
			return []splice{{s.end, s.end, block(fmt.Sprintf("  default_runtime_name = %q\n", name))}}, ""
		}
	}
	return nil, fmt.Sprintf("[%s]\n  default_runtime_name = %q\n", dotted(section), name)
}

// describe names a runtime of a configuration for a reader.
func describe(runtime map[string]any) string {
	parts := []string{}
	for _, k := range []string{"runtime_type", "runtime_path"} {
		if v, _ := runtime[k].(string); v != "" {
			parts = append(parts, fmt.Sprintf("%s = %.256q", k, v))
		}
	}
	if v, _ := lookup(runtime, "options", "BinaryName").(string); v != "" {
		parts = append(parts, fmt.Sprintf("BinaryName = %.256q", v))
	}
	if len(parts) == 0 {
		return "a runtime without a type"
	}
	return strings.Join(parts, ", ")
}

// isOurs tells whether a runtime's table names this shim.
func isOurs(runtimeType, runtimePath string) bool {
	return runtimeType == RuntimeType || path.Base(runtimeType) == ShimName || path.Base(runtimePath) == ShimName
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
