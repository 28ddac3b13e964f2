package runtimeclass

import (
	"bytes"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
)

// BackupSuffix is appended to a configuration file's name for its state before the installation.
const BackupSuffix = ".before-nvidia-shim"

// configFile is a configuration file of a daemon.
type configFile struct {
	// name is without links, so that a linked configuration stays one.
	name string
	// text is nil if there is no file; original is text without an earlier installation.
	text, original []byte
}

// readConfigFile reads a file in which an installation is marked by comments.
func (h Host) readConfigFile(name string) (configFile, error) {
	name, err := h.follow(name)
	if err != nil {
		return configFile{}, err
	}
	text, err := h.read(name)
	if err != nil {
		return configFile{}, err
	}
	original, err := strip(text)
	if err != nil {
		return configFile{}, fmt.Errorf("%s: %w", name, err)
	}
	return configFile{name, text, original}, nil
}

// edited returns the changes that give a configuration the text after, and keep the original.
func (h Host) edited(f configFile, after []byte) ([]Change, error) {
	change := Change{Kind: DaemonConfig, Path: f.name, Before: f.text, After: after}
	if f.text != nil && bytes.Equal(f.text, f.original) {
		backup, err := h.change(Original, f.name+BackupSuffix, f.text)
		return []Change{backup, change}, err
	}
	// The operator may have added lines behind ours: nothing moves without need.
	if f.text != nil && sameContent(f.text, after) {
		change.After = f.text
	}
	return []Change{change}, nil
}

// sameContent reports whether two files of TOML or JSON say the same.
func sameContent(a, b []byte) bool {
	for _, decode := range []func([]byte) (map[string]any, error){decode, decodeJSON} {
		va, errA := decode(a)
		vb, errB := decode(b)
		if errA == nil && errB == nil {
			return reflect.DeepEqual(va, vb)
		}
	}
	return false
}

// restored returns the changes that remove an installation from a configuration.
func (h Host) restored(f configFile) ([]Change, error) {
	if bytes.Equal(f.text, f.original) {
		return nil, nil
	}
	change := Change{Kind: DaemonConfig, Path: f.name, Before: f.text, After: f.original}
	backup, err := h.change(Original, f.name+BackupSuffix, nil)
	switch {
	case err != nil:
		return nil, err
	// The installation may have ended the last line.
	case backup.Before != nil && bytes.Equal(withLineEnd(backup.Before), withLineEnd(f.original)):
		change.After = backup.Before
		change.Note = f.name + " gets exactly the bytes that it had before the installation"
		return []Change{change, backup}, nil
	case backup.Before != nil:
		change.Note = fmt.Sprintf("%s has been changed since the installation: only our lines are removed, and %s stays",
			f.name, filepath.Base(backup.Path))
	case isEmpty(f.original):
		change.After, change.Note = nil, f.name+" is removed: it was made by the installation"
	}
	return []Change{change}, nil
}

// isEmpty reports whether a configuration says nothing, as one that an installation made.
func isEmpty(text []byte) bool {
	text = bytes.TrimSpace(text)
	return len(text) == 0 || string(text) == "{}" || string(text) == strings.TrimSpace(baseTemplate)
}
