package runtimeclass

import (
	"bytes"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
)

func (p *Plan) edit(f edited) error {
	p.Handler, p.configFile = f.handler, f.name
	change := hosttree.Change{Kind: hosttree.DaemonConfig, Path: f.name, Before: f.text, After: f.after}
	config, _ := tomledit.Decode(f.original) // a daemon.json is no TOML and has none
	// guard: installation: only originals kept
	if f.text != nil && bytes.Equal(f.text, f.original) && len(oursIn(config)) == 0 {
		backup, err := p.Host.Change(hosttree.Original, f.name+hosttree.BackupSuffix, f.text)
		p.Changes = append(p.Changes, backup, change)
		return err
	}
	// The operator may have added lines after ours: they do not move if the content is the same.
	if f.text != nil && sameContent(f.text, f.after) {
		change.After = f.text
	}
	p.Changes = append(p.Changes, change)
	return nil
}

// sameContent reports whether two TOML or JSON files have the same content.
func sameContent(a, b []byte) bool {
	for _, decode := range []func([]byte) (map[string]any, error){tomledit.Decode, decodeJSON} {
		va, errA := decode(a)
		vb, errB := decode(b)
		if errA == nil && errB == nil {
			return reflect.DeepEqual(va, vb)
		}
	}
	return false
}

func (p *Plan) restore(f configFile) error {
	if bytes.Equal(f.text, f.original) {
		return nil
	}
	change := hosttree.Change{Kind: hosttree.DaemonConfig, Path: f.name, Before: f.text, After: f.original}
	backup, err := p.Host.Change(hosttree.Original, f.name+hosttree.BackupSuffix, nil)
	switch {
	case err != nil:
		return err
	// The installation may have added the newline at the end of the last line.
	case backup.Before != nil && bytes.Equal(tomledit.WithLineEnd(backup.Before), tomledit.WithLineEnd(f.original)):
		change.After = backup.Before
		p.Changes = append(p.Changes, change, backup)
		p.note("%s gets exactly the bytes that it had before the installation", f.name)
		return nil
	case backup.Before != nil:
		p.note("%s has been changed since the installation: only our lines are removed, and %s stays",
			f.name, filepath.Base(backup.Path))
	case isEmpty(f.original):
		change.After = nil
		p.note("%s is removed: it was made by the installation", f.name)
	}
	p.Changes = append(p.Changes, change)
	return nil
}

// baseTemplate is a template that changes nothing. It stays outside our markers: k3s copies the
// markers into the configuration, and everything that k3s generates would be between them.
const baseTemplate = "{{ template \"base\" . }}\n"

// isEmpty reports whether a configuration has no settings, like one that an installation created.
func isEmpty(text []byte) bool {
	text = bytes.TrimSpace(text)
	return len(text) == 0 || string(text) == "{}" || string(text) == strings.TrimSpace(baseTemplate)
}
