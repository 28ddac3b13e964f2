package runtimeclass

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// DefaultContainerdConfig is containerd's own default.
const DefaultContainerdConfig = "/etc/containerd/config.toml"

// dropIn is the name of our file in a directory of imports. It comes after names that
// begin with digits, 99-nvidia.toml of NVIDIA's toolkit among them: the last one wins.
const dropIn = "nvidia-shim.toml"

// Runtime is one handler of a containerd configuration.
type Runtime struct {
	// Type and Path are runtime_type and runtime_path.
	Type, Path string
	// Options is the table of this name; nil without one.
	Options map[string]any
}

// Ours tells whether the handler starts this project's shim.
func (r Runtime) Ours() bool { return isOurs(r.Type, r.Path) }

// Configuration is what containerd's configuration says about runtimes.
type Configuration struct {
	// Version is that of the main file; 1 where it says nothing.
	Version int
	// Runtimes by handler, and the name of the default one: runc where nothing is said.
	Runtimes map[string]Runtime
	Default  string
	// CRIDisabled says that the plugin that serves Kubernetes is switched off.
	CRIDisabled bool
	// CDI is CRI's enable_cdi, which containerd up to 2.3 reads; nil where it is not set.
	CDI *bool
	// Files are those that were read, in containerd's order; none for a dump.
	Files []string
}

// SystemdCgroup is the option of the default runtime; nil where it is not set.
func (c *Configuration) SystemdCgroup() *bool {
	if v, ok := c.Runtimes[c.Default].Options["SystemdCgroup"].(bool); ok {
		return &v
	}
	return nil
}

// ParseConfiguration reads one text: a file without imports, or the output of
// `containerd config dump`.
func ParseConfiguration(text []byte) (*Configuration, error) {
	f, err := parseFile("", text, Version{})
	if err != nil {
		return nil, err
	}
	return effective([]*file{f}), nil
}

// ReadConfiguration reads a configuration with its imports. A missing file is an
// empty configuration.
func ReadConfiguration(h Host, name string) (*Configuration, error) {
	files, err := h.load(name, false)
	if err != nil {
		return nil, err
	}
	c := effective(files)
	for _, f := range files {
		if f.text != nil {
			c.Files = append(c.Files, f.name)
		}
	}
	return c, nil
}

// file is one configuration file.
type file struct {
	name string
	// text is nil where there is no file; stripped is without our parts.
	text, stripped []byte
	// config is what was decoded, of stripped if so asked.
	config  map[string]any
	version int
	// cri is the section of the plugin with the runtimes; nil without one.
	cri map[string]any
}

func parseFile(name string, text []byte, daemon Version) (*file, error) {
	f := &file{name: name, text: text}
	var err error
	if f.config, err = decode(text); err != nil {
		return nil, fmt.Errorf("%s: %s", name, oneLine(err))
	}
	if f.version, err = configVersion(f.config); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f.cri = table(f.config, "plugins", criPlugin(f.version, f.config, daemon))
	return f, nil
}

// load reads a file and its imports in containerd's order; the main file is first.
func (h Host) load(name string, stripped bool) ([]*file, error) {
	var out []*file
	seen := map[string]bool{}
	for pending := []string{name}; len(pending) > 0; {
		name, pending = pending[0], pending[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		text, err := h.read(name)
		if err != nil {
			return nil, err
		}
		use := text
		var bare []byte
		if bare, err = strip(text); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if stripped {
			use = bare
		}
		f, err := parseFile(name, use, h.Daemon)
		if err != nil {
			return nil, err
		}
		f.text, f.stripped = text, bare
		out = append(out, f)
		for _, pattern := range f.imports() {
			if !strings.Contains(pattern, "*") {
				pending = append(pending, pattern)
				continue
			}
			matches, err := filepath.Glob(h.real(pattern))
			if err != nil {
				return nil, fmt.Errorf("%s: import %.256q: %w", name, pattern, err)
			}
			for _, m := range matches {
				rel, err := filepath.Rel(h.real("/"), m)
				if err != nil {
					return nil, err
				}
				pending = append(pending, "/"+rel)
			}
		}
	}
	return out, nil
}

// imports are the patterns of a file as absolute paths.
func (f *file) imports() []string {
	var out []string
	list, _ := f.config["imports"].([]any)
	for _, v := range list {
		p, ok := v.(string)
		if !ok || p == "" {
			continue
		}
		if !path.IsAbs(p) {
			p = path.Join(path.Dir(f.name), p)
		}
		out = append(out, path.Clean(p))
	}
	return out
}

// effective merges files as containerd 2.1 and later do.
func effective(files []*file) *Configuration {
	c := &Configuration{Version: files[0].version, Runtimes: map[string]Runtime{}, Default: "runc"}
	cri := map[string]any{}
	for _, f := range files {
		merge(cri, f.cri)
		disabled, _ := f.config["disabled_plugins"].([]any)
		for _, name := range []string{criV1, criV2, criV3} {
			c.CRIDisabled = c.CRIDisabled || slices.Contains(disabled, any(name))
		}
	}
	if name, _ := lookup(cri, "containerd", "default_runtime_name").(string); name != "" {
		c.Default = name
	}
	if on, ok := lookup(cri, "enable_cdi").(bool); ok {
		c.CDI = &on
	}
	for name, v := range table(cri, "containerd", "runtimes") {
		t, ok := v.(map[string]any)
		if !ok {
			continue
		}
		r := Runtime{Options: table(t, "options")}
		r.Type, _ = t["runtime_type"].(string)
		r.Path, _ = t["runtime_path"].(string)
		c.Runtimes[name] = r
	}
	return c
}

// merging tells whether the daemon merges the tables of imported files. containerd
// before 2.1 replaces a plugin's whole section by that of the last file that has one
// (containerd issue 5837).
func (h Host) merging() bool { return h.Daemon.AtLeast(2, 1, 0) }

// InstallContainerd plans the registration in containerd's configuration. The form is
// a drop-in file where the main file imports a directory and the daemon merges what it
// finds there, and otherwise an edit of the file that counts.
func InstallContainerd(h Host, name string, r Registration) (*Plan, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	name, err := h.follow(name)
	if err != nil {
		return nil, err
	}
	files, err := h.load(name, true)
	if err != nil {
		return nil, err
	}
	main, config := files[0], effective(files)
	p := &Plan{Host: h, Restart: Restart{"restart", []string{"containerd"}}}
	handler, why := r.form(h.Daemon, config.SystemdCgroup())
	p.note(why)
	if config.CRIDisabled {
		p.note("disabled_plugins switches CRI off in this configuration: Kubernetes cannot use this containerd before that line is gone")
	}

	target := main
	if !h.merging() {
		for _, f := range files {
			if f.cri != nil {
				target = f
			}
		}
	}
	owner := holder(files, r.Handler)
	if owner != nil && owner != target {
		return nil, fmt.Errorf("%w: %q is %s in %s: choose another --handler, or remove it there", ErrTaken, r.Handler,
			describe(table(owner.cri, "containerd", "runtimes", r.Handler)), owner.name)
	}

	drop := main.dropIn()
	// Imports are merged key by key: another runtime of that name would keep its
	// options, and a BinaryName among them would inject a second time.
	useDropIn := drop != "" && h.merging() && (owner == nil || !r.Replace)
	if useDropIn && owner != nil {
		return nil, fmt.Errorf("%w: %q is %s in %s: choose another --handler, or --replace it until uninstall", ErrTaken, r.Handler,
			describe(table(owner.cri, "containerd", "runtimes", r.Handler)), owner.name)
	}
	switch {
	case useDropIn:
		p.note(fmt.Sprintf("%s imports %s: a file there, and no edit", main.name, path.Dir(drop)))
		if p.Changes, err = h.cleaned(files, drop); err != nil {
			return nil, err
		}
		before, err := h.read(drop)
		if err != nil {
			return nil, err
		}
		after := []byte(fresh(3, r, handler, false))
		if before != nil {
			bare, err := strip(before)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", drop, err)
			}
			if len(bare) > 0 {
				return nil, fmt.Errorf("%s has lines that are not of this program: move them to another file", drop)
			}
		}
		p.Changes = append(p.Changes, Change{Path: drop, Before: before, After: after})
	case len(main.stripped) == 0:
		// No file, an empty one, or one that is ours as a whole.
		version := 2
		if h.Daemon.AtLeast(2, 0, 0) {
			version = 3
		}
		if main.text == nil {
			p.note(fmt.Sprintf("there is no %s: it is made, of version %d", main.name, version))
		}
		p.Changes = []Change{{Path: main.name, Before: main.text, After: []byte(fresh(version, r, handler, version == 2)),
			Backup: main.text != nil && len(main.text) == 0}}
	default:
		if drop != "" && !h.merging() {
			p.note(fmt.Sprintf("%s is edited, because containerd before 2.1 does not merge what it imports", target.name))
		}
		if p.Changes, err = h.cleaned(files, target.name); err != nil {
			return nil, err
		}
		e, err := register(target.stripped, r, handler, h.Daemon)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", target.name, err)
		}
		p.Notes = append(p.Notes, e.notes...)
		p.Changes = append(p.Changes, installed(target.name, target.text, target.stripped, e.text))
	}
	return p, nil
}

func (p *Plan) note(text string) { p.Notes = append(p.Notes, text) }

// holder is the last file with a runtime of that name.
func holder(files []*file, name string) *file {
	for _, f := range slices.Backward(files) {
		if table(f.cri, "containerd", "runtimes", name) != nil {
			return f
		}
	}
	return nil
}

// dropIn is the path of our file in the first directory that a file imports as a whole.
func (f *file) dropIn() string {
	for _, pattern := range f.imports() {
		name := path.Join(path.Dir(pattern), dropIn)
		if ok, err := path.Match(pattern, name); ok && err == nil && !strings.ContainsAny(path.Dir(pattern), "*?[") {
			return name
		}
	}
	return ""
}

// cleaned takes our parts out of all files but one.
func (h Host) cleaned(files []*file, but string) ([]Change, error) {
	var out []Change
	for _, f := range files {
		if f.name == but {
			continue
		}
		c, err := h.removed(f.name, f.text)
		if err != nil {
			return nil, err
		}
		if c.changes() {
			out = append(out, c)
		}
	}
	return out, nil
}

// fresh is a whole file of ours, in a section for the version.
func fresh(version int, r Registration, h handler, addDefault bool) string {
	section := []string{"plugins", criPlugin(version, nil, Version{}), "containerd"}
	runtimes := slices.Concat(section, []string{"runtimes"})
	body := fmt.Sprintf("version = %d\n", version)
	if r.Default {
		body += fmt.Sprintf("[%s]\n  default_runtime_name = %q\n", dotted(section), r.Handler)
	}
	if addDefault && r.Handler != "runc" {
		body += handler{runtimeType: stockType}.tables(runtimes, "runc")
	}
	return block(body + h.tables(runtimes, r.Handler))
}

// UninstallContainerd plans the removal from containerd's configuration and what it
// imports.
func UninstallContainerd(h Host, name string) (*Plan, error) {
	name, err := h.follow(name)
	if err != nil {
		return nil, err
	}
	files, err := h.load(name, false)
	if err != nil {
		return nil, err
	}
	p := &Plan{Host: h, Restart: Restart{"restart", []string{"containerd"}}}
	if p.Changes, err = h.cleaned(files, ""); err != nil {
		return nil, err
	}
	return p, h.explain(p)
}

// explain says about each file whether it is as it was.
func (h Host) explain(p *Plan) error {
	for _, c := range p.Changes {
		backup, err := h.read(c.Path + BackupSuffix)
		if err != nil {
			return err
		}
		switch {
		case !c.changes():
		case c.After == nil:
			p.note(c.Path + " is removed: it was made by the installation")
		case c.BackupDone:
			p.note(c.Path + " gets exactly the bytes that it had before the installation")
		case backup != nil && !bytes.Equal(backup, c.After):
			p.note(fmt.Sprintf("%s has been changed since the installation: only our lines are removed, and %s%s stays", c.Path, path.Base(c.Path), BackupSuffix))
		}
	}
	if len(p.Changes) == 0 {
		p.note("nothing of this program is registered here")
	}
	return nil
}

// errNoTarget is for a daemon whose directories are not there.
var errNoTarget = errors.New("is not on this host")
