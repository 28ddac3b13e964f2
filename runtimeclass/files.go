package runtimeclass

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"embed"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// This file plans what an installation writes besides a daemon's configuration: the programs, the
// systemd units and the shim's configuration.

// machines maps ELF machines to Go's names of architectures.
var machines = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}

// arch returns the architecture of a program; "" if it is unknown.
func arch(program []byte) string {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return ""
	}
	return machines[f.Machine]
}

// installPrograms copies the programs from a directory of this system.
func (p *Plan) installPrograms(o Options) error {
	want := o.Arch
	if want == "" {
		shell, err := p.Host.Read("/bin/sh")
		if err != nil {
			return err
		}
		want = arch(shell)
	}
	for _, name := range Programs {
		target := path.Join(o.Registration.BinDir, name)
		after, err := os.ReadFile(filepath.Join(o.Programs, name))
		if err != nil {
			return err
		}
		if have := arch(after); have != want && have != "" && want != "" {
			return fmt.Errorf("%s is for %s, and the host is %s: name a directory of other programs with --from, or correct --arch",
				filepath.Join(o.Programs, name), have, want)
		}
		change, err := p.Host.Change(hosttree.Program, target, after)
		if err != nil {
			return err
		}
		if st, err := p.Host.Stat(target); err == nil && st.Mode&0o777 != hosttree.ProgramMode {
			// Write it again, to restore its mode.
			change.Before = nil
		}
		p.Changes = append(p.Changes, change)
	}
	return nil
}

//go:embed nvidia-shim-*
var units embed.FS

// unitMark begins a unit that this program may replace and remove.
const unitMark = "# Made by nvidia-shimctl"

// installUnit plans the units and enables the prepare unit. Another program's unit is an error.
func (p *Plan) installUnit(binDir string) error {
	// In systemd's syntax, a blank ends the program's name and % begins a specifier.
	if strings.ContainsAny(binDir, " \t%;$") {
		return fmt.Errorf("directory %.256q of the programs cannot be in a unit of systemd", binDir)
	}
	if binDir == PackageBinDir && p.Host.Exists(packagedUnit) && !p.Host.Exists(UnitPath) {
		link, err := p.Host.Change(hosttree.Link, UnitLink, []byte(packagedUnit))
		p.Changes = append(p.Changes, link)
		return err
	}
	for _, name := range []string{cdiPath, cdiService, UnitPath} {
		text, err := units.ReadFile(path.Base(name))
		if err != nil {
			return err
		}
		text = bytes.Replace(text, []byte(path.Join(DefaultBinDir, version.Ctl)), []byte(path.Join(binDir, version.Ctl)), 1)
		unit, err := p.Host.Change(hosttree.OtherFile, name, text)
		if err != nil {
			return err
		}
		if unit.Before != nil && !bytes.HasPrefix(unit.Before, []byte(unitMark)) {
			return fmt.Errorf("%s was not written by this program: remove it, or leave --prepare-unit out", name)
		}
		p.Changes = append(p.Changes, unit)
	}
	p.note("%s runs at every boot; for now: systemctl daemon-reload && systemctl start %s", UnitName, UnitName)
	link, err := p.Host.Change(hosttree.Link, UnitLink, []byte(UnitPath))
	p.Changes = append(p.Changes, link)
	return err
}

// The first lines of a generated shim configuration and CDI specification. The checksum between
// them shows whether the operator changed the file.
const (
	fileMark     = "# Made by nvidia-shimctl, sum "
	fileMarkRest = ".\n# nvidia-shimctl keeps this file up to date while it is unchanged; edit it, and it is yours.\n"
)

// Marked returns body preceded by these lines.
func Marked(body string) []byte {
	sum := sha256.Sum256([]byte(body))
	return []byte(fileMark + hex.EncodeToString(sum[:8]) + fileMarkRest + body)
}

// Unchanged reports whether text is still as Marked returned it.
func Unchanged(text []byte) bool {
	_, body, ok := strings.Cut(string(text), fileMarkRest)
	return ok && string(text) == string(Marked(body))
}

// hasSettings reports whether a TOML file sets anything. One that cannot be read does.
func hasSettings(text []byte) bool {
	config, err := tomledit.Decode(text)
	return err != nil || len(tomledit.WithoutEmpty(config)) > 0
}

// installConfig plans the shim's configuration. A file with the same settings stays, and one
// without settings, such as that of the package, is kept as the original. A file with other settings
// is an error if install did not write it.
func (p *Plan) installConfig(path, body string) error {
	change, err := p.Host.Change(hosttree.OtherFile, path, nil)
	if err != nil {
		return err
	}
	switch {
	case change.Before == nil || Unchanged(change.Before):
		if body != "" {
			change.After = Marked(body)
		}
	case sameContent(change.Before, []byte(body)):
		change.After = change.Before
	case hasSettings(change.Before):
		return fmt.Errorf("%s exists and is not overwritten: remove it, or add to it by hand\n%s", path, strings.TrimSpace(body))
	default:
		change.After = Marked(body)
		original, err := p.Host.Change(hosttree.Original, path+hosttree.BackupSuffix, change.Before)
		if err != nil {
			return err
		}
		p.Changes = append(p.Changes, original)
	}
	p.Changes = append(p.Changes, change)
	return nil
}
