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

// maxProgram bounds a program, in bytes.
const maxProgram = 256 << 20

// Copy is one program to install.
type Copy struct {
	// From is a path of this system, To one below the host's root.
	From, To string
	// Same says that To has those bytes already.
	Same bool
}

// Binaries says what to copy from a directory of this system. The same directory on
// both sides means nothing to do.
func (h Host) Binaries(from, binDir string) ([]Copy, error) {
	var out []Copy
	for _, name := range Programs {
		c := Copy{From: filepath.Join(from, name), To: path.Join(binDir, name)}
		if err := checkProgram(c.From); err != nil {
			return nil, err
		}
		same, err := sameFile(c.From, h.real(c.To))
		if err != nil {
			return nil, err
		}
		c.Same = same
		out = append(out, c)
	}
	return out, nil
}

// checkProgram refuses what is not a program: a script in its place would be executed
// as root by containerd.
func checkProgram(name string) error {
	st, err := os.Stat(name)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Size() > maxProgram {
		return fmt.Errorf("%s is not a program", name)
	}
	f, err := elf.Open(name)
	if err != nil {
		return fmt.Errorf("%s is not a program: %w", name, err)
	}
	return f.Close()
}

func sameFile(a, b string) (bool, error) {
	sa, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	sb, err := os.Stat(b)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if os.SameFile(sa, sb) {
		return true, nil
	}
	if sa.Size() != sb.Size() || sb.Mode().Perm() != 0o755 {
		return false, nil
	}
	da, err := os.ReadFile(a)
	if err != nil {
		return false, err
	}
	db, err := os.ReadFile(b)
	if err != nil {
		return false, err
	}
	return bytes.Equal(da, db), nil
}

// InstallBinaries copies the programs that differ, each by an atomic rename: a shim
// that runs keeps its file, and none can start half of one.
func (h Host) InstallBinaries(copies []Copy) error {
	for _, c := range copies {
		if c.Same {
			continue
		}
		data, err := os.ReadFile(c.From)
		if err != nil {
			return err
		}
		to := h.real(c.To)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := replaceFile(to, "", data, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// RemoveBinaries removes the programs. While a shim runs that was started from the
// directory nothing is removed: containerd needs the file to clean up after it. The
// names of what stays are returned.
func (h Host) RemoveBinaries(binDir, proc string) (stay []string, err error) {
	running, err := h.running(path.Join(binDir, ShimName), proc)
	if err != nil {
		return nil, err
	}
	for _, name := range Programs {
		p := path.Join(binDir, name)
		if _, err := os.Lstat(h.real(p)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if running > 0 {
			stay = append(stay, p)
			continue
		}
		if err := os.Remove(h.real(p)); err != nil {
			return stay, err
		}
	}
	return stay, nil
}

// running counts processes that execute a file, or one that has been replaced since.
func (h Host) running(name, proc string) (int, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		// A process may end meanwhile.
		exe, err := os.Readlink(filepath.Join(proc, e.Name(), "exe"))
		if err == nil && strings.TrimSuffix(exe, " (deleted)") == h.real(name) {
			count++
		}
	}
	return count, nil
}
