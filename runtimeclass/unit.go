package runtimeclass

import (
	_ "embed"
	"fmt"
	"path"
	"strings"
)

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

// unitText is the text of the unit, for programs in a directory.
func unitText(binDir string) (string, error) {
	// systemd takes a blank for the end of the program's name, and % for a specifier.
	if strings.ContainsAny(binDir, " \t%;$") {
		return "", fmt.Errorf("directory %.256q of the programs cannot be in a unit of systemd", binDir)
	}
	return strings.Replace(prepareUnit, path.Join(DefaultBinDir, CtlName), path.Join(binDir, CtlName), 1), nil
}

// installUnit returns the changes that write and enable the unit. Another program's unit of that
// name is an error.
func (h Host) installUnit(binDir string) ([]Change, error) {
	text, err := unitText(binDir)
	if err != nil {
		return nil, err
	}
	now, err := h.read(UnitPath)
	if err != nil {
		return nil, err
	}
	if now != nil && !strings.HasPrefix(string(now), unitMark) {
		return nil, fmt.Errorf("%s is not of this program: remove it, or leave --prepare-unit out", UnitPath)
	}
	link, err := h.readLink(UnitLink)
	return []Change{{OtherFile, UnitPath, now, []byte(text)}, {Link, UnitLink, link, []byte(UnitPath)}}, err
}

// uninstallUnit returns the changes that remove the unit and its link, if it is ours and runs the
// program of this directory.
func (h Host) uninstallUnit(binDir string) ([]Change, error) {
	now, err := h.read(UnitPath)
	if err != nil {
		return nil, err
	}
	runs := "\nExecStart=" + path.Join(binDir, CtlName) + " "
	if now != nil && (!strings.HasPrefix(string(now), unitMark) || !strings.Contains(string(now), runs)) {
		return nil, nil
	}
	changes := []Change{{OtherFile, UnitPath, now, nil}}
	link, err := h.readLink(UnitLink)
	if string(link) == UnitPath {
		changes = append(changes, Change{Link, UnitLink, link, nil})
	}
	return changes, err
}
