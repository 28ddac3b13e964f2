package runtimeclass

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Programs are what an installation puts into its directory.
var Programs = []string{ShimName, CtlName}

const programMode = 0o755

// installPrograms returns the changes that copy the programs from a directory of this system.
func (h Host) installPrograms(from, binDir string) ([]Change, error) {
	var changes []Change
	for _, name := range Programs {
		source, target := filepath.Join(from, name), path.Join(binDir, name)
		after, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		// containerd would run a script in its place as root.
		if _, err := elf.NewFile(bytes.NewReader(after)); err != nil {
			return nil, fmt.Errorf("%s is not a program: %w", source, err)
		}
		before, err := h.read(target)
		if err != nil {
			return nil, err
		}
		if st, err := os.Stat(h.real(target)); err == nil && st.Mode().Perm() != programMode {
			// It is written again, with its mode.
			before = nil
		}
		changes = append(changes, Change{Program, target, before, after})
	}
	return changes, nil
}

// RemovePrograms removes the programs, unless a process runs the directory's shim: containerd needs
// the file to clean up after it. It returns the paths that stay.
func (h Host) RemovePrograms(binDir, proc string) (stay []string, err error) {
	running, err := isRunning(h.real(path.Join(binDir, ShimName)), proc)
	if err != nil {
		return nil, err
	}
	for _, name := range Programs {
		p := path.Join(binDir, name)
		if _, err := os.Lstat(h.real(p)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if running {
			stay = append(stay, p)
			continue
		}
		if err := os.Remove(h.real(p)); err != nil {
			return stay, err
		}
	}
	return stay, nil
}

// isRunning reports whether a process executes the program, or a file that it has replaced.
func isRunning(program, proc string) (bool, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		// A process may end meanwhile.
		exe, err := os.Readlink(filepath.Join(proc, e.Name(), "exe"))
		if err == nil && strings.TrimSuffix(exe, " (deleted)") == program {
			return true, nil
		}
	}
	return false, nil
}
