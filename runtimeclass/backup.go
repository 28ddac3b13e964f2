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
	name string
	// text is nil if there is no file; original is text without an earlier installation.
	text, original []byte
}

// readConfigFile reads a file in which an installation is marked by comments.
func (h Host) readConfigFile(name string) (configFile, error) {
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
	if f.text != nil && bytes.Equal(f.text, f.original) {
		backup, err := h.change(Original, f.name+BackupSuffix, f.text)
		return []Change{backup, {DaemonConfig, f.name, f.text, after}}, err
	}
	// The operator may have added lines behind ours: nothing moves without need.
	if f.text != nil && sameContent(f.text, after) {
		after = f.text
	}
	return []Change{{DaemonConfig, f.name, f.text, after}}, nil
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

// restored returns the changes that remove an installation from a configuration, and notes.
func (h Host) restored(f configFile) ([]Change, []string, error) {
	if bytes.Equal(f.text, f.original) {
		return nil, nil, nil
	}
	backup, err := h.change(Original, f.name+BackupSuffix, nil)
	if err != nil {
		return nil, nil, err
	}
	change := Change{DaemonConfig, f.name, f.text, f.original}
	switch {
	// The installation may have ended the last line.
	case backup.Before != nil && bytes.Equal(withLineEnd(backup.Before), withLineEnd(f.original)):
		change.After = backup.Before
		return []Change{change, backup}, []string{f.name + " gets exactly the bytes that it had before the installation"}, nil
	case backup.Before != nil:
		return []Change{change}, []string{fmt.Sprintf("%s has been changed since the installation: only our lines are removed, and %s stays",
			f.name, filepath.Base(backup.Path))}, nil
	case isEmpty(f.original):
		change.After = nil
		return []Change{change}, []string{f.name + " is removed: it was made by the installation"}, nil
	}
	return []Change{change}, nil, nil
}

// isEmpty reports whether a configuration says nothing, as one that an installation made.
func isEmpty(text []byte) bool {
	text = bytes.TrimSpace(text)
	return len(text) == 0 || string(text) == "{}" || string(text) == strings.TrimSpace(baseTemplate)
}
