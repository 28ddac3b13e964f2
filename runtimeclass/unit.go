package runtimeclass

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Places of the unit that runs `nvidia-shimctl prepare` at boot. The link is what
// systemctl enable makes.
const (
	UnitName = "nvidia-shim-prepare.service"
	UnitPath = "/etc/systemd/system/" + UnitName
	UnitLink = "/etc/systemd/system/multi-user.target.wants/" + UnitName
)

//go:embed nvidia-shim-prepare.service
var prepareUnit string

// unitMark begins a unit that is ours to replace and remove.
const unitMark = "# Made by nvidia-shimctl"

// PrepareUnit is the text of the unit, for programs in a directory.
func PrepareUnit(binDir string) (string, error) {
	if err := (Registration{Handler: DefaultHandler, BinDir: binDir}).validate(); err != nil {
		return "", err
	}
	// systemd takes a blank for the end of the program's name, and % for a specifier.
	if strings.ContainsAny(binDir, " \t%;$") {
		return "", fmt.Errorf("directory %.256q of the programs cannot be in a unit of systemd", binDir)
	}
	return strings.Replace(prepareUnit, path.Join(DefaultBinDir, CtlName), path.Join(binDir, CtlName), 1), nil
}

// InstallUnit is the change that writes the unit. A unit of that name that somebody
// else wrote is an error. EnableUnit completes it.
func (h Host) InstallUnit(binDir string) (Change, error) {
	text, err := PrepareUnit(binDir)
	if err != nil {
		return Change{}, err
	}
	now, err := h.read(UnitPath)
	if err != nil {
		return Change{}, err
	}
	if now != nil && !strings.HasPrefix(string(now), unitMark) {
		return Change{}, fmt.Errorf("%s is not of this program: remove it, or leave --prepare-unit out", UnitPath)
	}
	return Change{Path: UnitPath, Before: now, After: []byte(text)}, nil
}

// EnableUnit has the unit run at the next boot, as systemctl enable does.
func (h Host) EnableUnit() error {
	if h.unitEnabled() {
		return nil
	}
	link := h.real(UnitLink)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(UnitPath, link)
}

func (h Host) unitEnabled() bool {
	to, err := os.Readlink(h.real(UnitLink))
	return err == nil && to == UnitPath
}

// UninstallUnit is the change that removes the unit, where it is of this program and
// runs that of this directory; it changes nothing elsewhere. DisableUnit completes it.
func (h Host) UninstallUnit(binDir string) (Change, error) {
	now, err := h.read(UnitPath)
	if err != nil {
		return Change{}, err
	}
	c := Change{Path: UnitPath, Before: now, After: now}
	if strings.HasPrefix(string(now), unitMark) && strings.Contains(string(now), "\nExecStart="+path.Join(binDir, CtlName)+" ") {
		c.After = nil
	}
	return c, nil
}

// DisableUnit removes the link that EnableUnit made, once nothing is behind it.
func (h Host) DisableUnit() error {
	if _, err := os.Lstat(h.real(UnitPath)); !errors.Is(err, fs.ErrNotExist) || !h.unitEnabled() {
		return nil
	}
	return os.Remove(h.real(UnitLink))
}
