package runtimeclass

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// This file has what an installation writes besides the configuration of a daemon: the programs,
// the unit of systemd, and the configuration of the shim.

// Programs are what an installation puts into its directory.
var Programs = []string{ShimName, CtlName, NVMLName}

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

// Places of the unit that runs `nvidia-shimctl prepare` at boot. The link is what systemctl enable
// makes.
const (
	UnitName = "nvidia-shim-prepare.service"
	UnitPath = "/etc/systemd/system/" + UnitName
	UnitLink = "/etc/systemd/system/multi-user.target.wants/" + UnitName
)

//go:embed nvidia-shim-prepare.service
var prepareUnit string

// unitMark begins a unit that is ours to replace and remove.
const unitMark = "# Made by nvidia-shimctl"

// installUnit writes and enables the unit. Another program's unit of that name is an error.
func (p *Plan) installUnit(binDir string) error {
	// systemd takes a blank for the end of the program's name, and % for a specifier.
	if strings.ContainsAny(binDir, " \t%;$") {
		return fmt.Errorf("directory %.256q of the programs cannot be in a unit of systemd", binDir)
	}
	text := strings.Replace(prepareUnit, path.Join(DefaultBinDir, CtlName), path.Join(binDir, CtlName), 1)
	unit, err := p.Host.change(OtherFile, UnitPath, []byte(text))
	if err != nil {
		return err
	}
	if unit.Before != nil && !bytes.HasPrefix(unit.Before, []byte(unitMark)) {
		return fmt.Errorf("%s was not written by this program: remove it, or leave --prepare-unit out", UnitPath)
	}
	p.note("%s runs at every boot; for now: systemctl daemon-reload && systemctl start %s", UnitName, UnitName)
	link, err := p.Host.change(Link, UnitLink, []byte(UnitPath))
	p.Changes = append(p.Changes, unit, link)
	return err
}

// uninstallUnit removes the unit and its link, if it is ours and runs the program of this
// directory.
func (p *Plan) uninstallUnit(binDir string) error {
	unit, err := p.Host.change(OtherFile, UnitPath, nil)
	if err != nil {
		return err
	}
	now, runs := string(unit.Before), "\nExecStart="+path.Join(binDir, CtlName)+" "
	if unit.Before != nil && (!strings.HasPrefix(now, unitMark) || !strings.Contains(now, runs)) {
		return nil
	}
	p.Changes = append(p.Changes, unit)
	link, err := p.Host.change(Link, UnitLink, nil)
	if string(link.Before) == UnitPath {
		p.Changes = append(p.Changes, link)
	}
	return err
}

// The first lines of a configuration of the shim that install wrote. The sum between them tells a
// file that is as it was written from one that the operator changed.
const (
	configMark     = "# Made by nvidia-shimctl install --from-toolkit, sum "
	configMarkRest = ".\n# Uninstall removes this file while it is unchanged; edit it, and it is yours.\n"
)

func marked(body string) []byte {
	sum := sha256.Sum256([]byte(body))
	return []byte(configMark + hex.EncodeToString(sum[:8]) + configMarkRest + body)
}

// unchanged reports whether text is as install wrote it.
func unchanged(text []byte) bool {
	_, body, ok := strings.Cut(string(text), configMarkRest)
	return ok && string(text) == string(marked(body))
}

// installConfig writes a configuration of the shim. A file with the same settings stays; one with
// others that install did not write is an error.
func (p *Plan) installConfig(path, body string) error {
	change, err := p.Host.change(OtherFile, path, nil)
	if err != nil {
		return err
	}
	if change.Before != nil && !unchanged(change.Before) {
		if !sameContent(change.Before, []byte(body)) {
			return fmt.Errorf("%s exists and is not overwritten: remove it, or add to it by hand\n%s", path, strings.TrimSpace(body))
		}
		change.After = change.Before
	} else if body != "" {
		change.After = marked(body)
	}
	p.Changes = append(p.Changes, change)
	return nil
}

// uninstallConfig removes what installConfig wrote. A file that was changed since then stays.
func (p *Plan) uninstallConfig(path string) error {
	change, err := p.Host.change(OtherFile, path, nil)
	if unchanged(change.Before) {
		p.Changes = append(p.Changes, change)
	} else if strings.HasPrefix(string(change.Before), configMark) {
		p.note("%s stays: it was changed since --from-toolkit wrote it", path)
	}
	return err
}
