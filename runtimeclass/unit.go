package runtimeclass

import (
	"bytes"
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
		return fmt.Errorf("%s is not of this program: remove it, or leave --prepare-unit out", UnitPath)
	}
	p.note("%s runs at every boot; for now: systemctl daemon-reload && systemctl start %s", UnitName, UnitName)
	link, err := p.Host.change(Link, UnitLink, []byte(UnitPath))
	p.Changes = append(p.Changes, unit, link)
	return err
}

// uninstallUnit removes the unit and its link, if it is ours and runs the program of this directory.
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
