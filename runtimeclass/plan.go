package runtimeclass

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
)

// Host is a tree of files and the daemon that reads them.
type Host struct {
	hosttree.Tree
	// Daemon is the version of containerd or dockerd; zero if it is unknown.
	Daemon semver.Version
	// Program is the daemon's program on this host, which is asked for the configuration that it
	// reads; "" to ask none.
	Program string
	// Default is the default runtime on the command line of a running dockerd; "" for none.
	Default string
}

// Plan holds the changes of an installation or its removal.
type Plan struct {
	Host Host
	// Handler is the name of the installed handler.
	Handler string
	// Changes are in the order in which they are made.
	Changes []hosttree.Change
	// Notes tell the operator what was chosen and why.
	Notes []string
	// Restart makes the daemon read its configuration.
	Restart Restart
	// Programs are removed by RemovePrograms after the restart, and then their entries in the
	// record: until then the daemon may start the shim.
	Programs []hosttree.Change
	// NeededBy lists the runtimes, with their files, that keep an uninstallation from removing the
	// programs: an operator wrote them.
	NeededBy []string
	// State is the shim's state directory if this is the last registration that needs it. The
	// caller removes it after the programs.
	State string

	// registrar is that of the daemon, and mainFile the configuration that it is started with.
	registrar registrar
	mainFile  string
	// installed is the record of what installations wrote before.
	installed []placed
	// replace is true if another runtime with the handler's name may be overridden.
	replace bool
	// configFile is the configuration with the handler. byDefault is the handler that an
	// installation makes the default; "" for none.
	configFile, byDefault string
	// ownDefault is the default that a removal takes away; "" for none.
	ownDefault string
	// startedByHand lists, like NeededBy, the runtimes of containerd that an operator wrote and that
	// start the programs.
	startedByHand []string
	// kept are runtimes of this shim that an installation leaves as they are.
	kept []string
	// dirs are the directories that an installation writes to; made are those that installations
	// created.
	dirs, made []string
}

func (p *Plan) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// Changed reports whether the daemon's configuration changes, or anything else that the daemon
// reads when it starts.
func (p Plan) Changed() bool {
	return len(p.changing(hosttree.DaemonConfig)) > 0 || slices.Contains(p.changing(hosttree.Link), cdiHookLink)
}

func (p Plan) changing(kind hosttree.Kind) []string {
	paths := []string{}
	for _, c := range p.Changes {
		if c.Kind == kind && c.Differs() {
			paths = append(paths, c.Path)
		}
	}
	return paths
}

// Written and Removed return the paths of all files that the plan writes and removes.
func (p Plan) Written() []string { return p.paths(false) }

// Removed is described at Written.
func (p Plan) Removed() []string { return p.paths(true) }

func (p Plan) paths(removed bool) []string {
	paths := []string{}
	all := slices.Concat(p.Changes, p.Programs)
	for i, c := range all {
		again := slices.ContainsFunc(all[i+1:], func(later hosttree.Change) bool { return later.Path == c.Path })
		if !again && c.Differs() && (c.After == nil) == removed {
			paths = append(paths, c.Path)
		}
	}
	if removed && p.State != "" {
		paths = append(paths, p.State)
	}
	return paths
}

// Diff returns the changes of configurations and other text files in the format of patch(1).
func (p Plan) Diff() string {
	var b strings.Builder
	for _, c := range p.Changes {
		if c.Kind == hosttree.DaemonConfig || c.Kind == hosttree.OtherFile {
			b.WriteString(c.Diff())
		}
	}
	return b.String()
}

func (p Plan) apply() error {
	for _, dir := range p.dirs {
		p.Host.RemoveTemporary(dir)
	}
	for _, c := range p.Changes {
		if err := p.Host.Apply(c); err != nil {
			return fmt.Errorf("%s: %w", c.Path, err)
		}
	}
	p.removeDirectories()
	return nil
}

// removeDirectories removes the empty directories that installations created.
func (p Plan) removeDirectories() {
	slices.Sort(p.made)
	for _, name := range slices.Backward(p.made) {
		p.Host.Remove(name)
	}
}

// Undo returns a plan that restores the files that p changes to their present content. Programs
// that do not exist now are removed by RemovePrograms, after the restart.
func (p Plan) Undo() (Plan, error) {
	undo := Plan{Host: p.Host, Restart: p.Restart, made: p.made}
	undo.Restart.Verb = "restart" // a reload of Docker does not remove a runtime
	var record []hosttree.Change
	for _, c := range slices.Backward(p.Changes) {
		now, err := p.Host.Change(c.Kind, c.Path, nil)
		if err != nil {
			return undo, err
		}
		back := hosttree.Change{Kind: c.Kind, Path: c.Path, Before: c.After, After: now.Before}
		switch {
		case back.After == nil && c.Kind == hosttree.Program:
			undo.Programs = append(undo.Programs, back)
		case back.After == nil && c.Kind == hosttree.Record:
			record = append(record, back)
		default:
			undo.Changes = append(undo.Changes, back)
		}
	}
	undo.Programs = append(undo.Programs, record...) // it lists the programs until they are gone
	return undo, nil
}

// Daemon is a program that runs containers, and what is the same about it on every host. The rest of
// this project asks for these values, and not for names.
type Daemon struct {
	// Name selects it, in --target and in the record; Title is its name in a sentence.
	Name, Title string
	// Process is the name of its process. Signs are files any of which identifies it if it does not
	// run.
	Process string
	Signs   []string
	// Programs are patterns of the program that is asked for its version, an example of which is
	// Version. ProgramDirs are patterns of directories with its programs, besides ServicePath.
	Programs, ProgramDirs []string
	Version               string
	// Config is the configuration that it reads by default. If Generated is true, it writes that file
	// at each start, from templates.
	Config    string
	Generated bool
	// IsContainerd is true if it is a containerd or brings one: it has containerd's versions, its
	// runtimes are in a configuration of containerd, and a kubelet can use it.
	IsContainerd bool
	// Units are its systemd units, one of which runs on a host; none for a daemon that is no service.
	Units []string
	// State is the state directory of its containerd by default, and Log the file with the log of
	// that; "" if systemd's journal has it.
	State, Log string
	// Uses is the daemon of the host that it may run containers with; "" if there is none.
	Uses string
	// GPUsFlag is true if its client has the flag --gpus.
	GPUsFlag bool
	// Print returns what install prints in place of an installation; nil for a daemon of a host.
	Print func(Registration) string
}

// HasConfig reports whether an operator may name its configuration.
func (d Daemon) HasConfig() bool { return d.Config != "" && !d.Generated }

// VersionOf returns the name of the daemon whose versions it has.
func (d Daemon) VersionOf() string {
	if d.IsContainerd {
		return Containerd
	}
	return d.Name
}

// Program returns its program below root, or "".
func (d Daemon) Program(root string) string {
	for _, pattern := range d.Programs {
		found, _ := filepath.Glob(filepath.Join("/", root, pattern)) // the patterns are valid
		for _, name := range slices.Backward(found) {
			if _, err := exec.LookPath(name); err == nil {
				return name
			}
		}
	}
	return ""
}

// registrar registers the shim with one daemon. A daemon is one file with one type that does this;
// no other code knows its name.
type registrar interface {
	daemon() Daemon
	// owns reports whether a containerd process is its own.
	owns(containerd procfs.Process) bool
	// runtimes returns the runtimes in a file that start this shim.
	runtimes(h Host, file string) (map[string]Runtime, error)
	// files returns the files that may have a registration, with the text to restore. but is the
	// file that gets a new registration; "" for a removal.
	files(p *Plan, o Options, but string) ([]configFile, error)
	// register plans a registration in one file.
	register(p *Plan, o Options) (edited, error)
	// restart returns the command that makes it read its configuration after a handler was added or
	// removed.
	restart(h Host, removed bool) Restart
	// byHand lists runtimes that start the shim and that an operator wrote, with their files.
	byHand(p *Plan, o Options) []string
}

type placed struct {
	Path   string        `json:"path"`
	Kind   hosttree.Kind `json:"kind"`
	SHA256 string        `json:"sha256"`
	// OldSHA256 is the sum that the file may still have if the last installation was interrupted.
	OldSHA256 string `json:"old_sha256,omitempty"`
	// Version is the version of this program that wrote the file last.
	Version string `json:"version,omitempty"`
	// For lists the registrations that need the file, each a target and its configuration. A
	// directory has none: it is removed when it is empty.
	For []string `json:"for,omitempty"`
	// Handlers are the runtimes that an installation added to a configuration: a program that writes
	// the file again drops our marks, or copies them to another file.
	Handlers []string `json:"handlers,omitempty"`
}

type configFile struct {
	// name has its links resolved: a link to the file stays a link.
	name string
	// text is nil if there is no file; original is text without the changes of an earlier
	// installation.
	text, original []byte
}

type edited struct {
	configFile
	after   []byte
	handler string
	// more are changes that go with it.
	more []hosttree.Change
}
