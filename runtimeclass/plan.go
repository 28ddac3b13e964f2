package runtimeclass

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
)

// Host is a tree of files and the daemon that reads them.
type Host struct {
	hosttree.Tree
	// Daemon is the version of containerd; zero if it is not known.
	Daemon semver.Version
}

// Plan is what an installation or its removal changes.
type Plan struct {
	Host Host
	// Handler is the name of the installed handler.
	Handler string
	// Changes are in the order in which they are made.
	Changes []hosttree.Change
	// Notes say what was chosen and why, for the operator.
	Notes []string
	// Restart makes the daemon read its configuration.
	Restart Restart
	// Programs are removed after the restart, by RemovePrograms, and then their lines of the
	// record: until then the daemon may start the shim.
	Programs []hosttree.Change
	// State is the shim's state directory if it goes with this registration, the last one. The
	// caller removes it after the programs.
	State string

	// configFile is the configuration with the handler.
	configFile string
	// dirs are those in which an installation writes, made those that installations made.
	dirs, made []string
}

func (p *Plan) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// Changed reports whether the daemon's configuration changes, or what else it reads when it starts.
func (p Plan) Changed() bool {
	return len(p.changing(hosttree.DaemonConfig)) > 0 || slices.Contains(p.changing(hosttree.Link), cdiHookLink)
}

// changing returns the paths of the files of a kind that change.
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

// Diff shows the changes of configurations and other text files as patch(1) reads them.
func (p Plan) Diff() string {
	var b strings.Builder
	for _, c := range p.Changes {
		if c.Kind == hosttree.DaemonConfig || c.Kind == hosttree.OtherFile {
			b.WriteString(c.Diff())
		}
	}
	return b.String()
}

// Apply makes the changes, each by an atomic rename. A file that changed since the plan was made is
// left alone.
func (p Plan) Apply() error {
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

// removeDirectories removes those that installations made and that are empty.
func (p Plan) removeDirectories() {
	slices.Sort(p.made)
	for _, name := range slices.Backward(p.made) {
		p.Host.Remove(name)
	}
}

// Undo returns the plan that brings the files of this one back to what they are now. Programs that
// are not there now are removed after the restart, by RemovePrograms.
func (p Plan) Undo() (Plan, error) {
	undo := Plan{Host: p.Host, Restart: p.Restart, made: p.made}
	undo.Restart.Verb = "restart" // a reload of Docker takes no runtime away
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
	undo.Programs = append(undo.Programs, record...) // it knows the programs until they are gone
	return undo, nil
}
