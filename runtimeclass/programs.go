package runtimeclass

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Programs are what an installation puts into its directory.
var Programs = []string{ShimName, CtlName}

const programMode = 0o755

// installPrograms copies the programs from a directory of this system.
func (p *Plan) installPrograms(from, binDir string) error {
	for _, name := range Programs {
		target := path.Join(binDir, name)
		after, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		change, err := p.Host.change(Program, target, after)
		if err != nil {
			return err
		}
		if st, err := os.Stat(p.Host.real(target)); err == nil && st.Mode().Perm() != programMode {
			// It is written again, with its mode.
			change.Before = nil
		}
		p.Changes = append(p.Changes, change)
	}
	return nil
}

// RemovePrograms removes the programs, unless a process runs the directory's shim: containerd needs
// the file to clean up after it. It returns the paths that stay.
func (h Host) RemovePrograms(binDir string, proc procfs.FS) (stay []string, err error) {
	shim := h.real(path.Join(binDir, ShimName))
	running := slices.ContainsFunc(proc.Named(ShimName), func(p procfs.Process) bool { return p.Program == shim })
	for _, name := range Programs {
		p := path.Join(binDir, name)
		if !running {
			err = os.Remove(h.real(p))
		} else if _, err = os.Lstat(h.real(p)); err == nil {
			stay = append(stay, p)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return stay, err
		}
	}
	return stay, nil
}
