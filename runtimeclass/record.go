package runtimeclass

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// RecordPath is the record of what was installed. Tests that install on this host change it.
var RecordPath = "/etc/nvidia-shim/installed.json"

// Registered returns the options for each registration on a host.
func Registered(h Host, o Options) ([]Options, error) {
	record, err := h.loadRecord()
	var names []string
	for _, f := range record {
		names = append(names, f.For...)
	}
	slices.Sort(names)
	var list []Options
	for _, name := range slices.Compact(names) {
		o.Target, o.ConfigFile, _ = strings.Cut(name, " ")
		list = append(list, o)
	}
	return list, err
}

// RemovePrograms removes the programs of an uninstallation, unless a process of the host runs the
// shim: containerd needs its file to clean up after it. It returns the paths that stay.
func (p Plan) RemovePrograms(proc procfs.FS) (stay []string, err error) {
	shims := proc.Running(version.Shim)
	runs := func(c hosttree.Change) bool {
		// guard: processes: shims of the host keep programs
		return slices.ContainsFunc(shims, func(r procfs.Process) bool { return r.Executes(p.Host.Real(c.Path)) })
	}
	if slices.ContainsFunc(p.Programs, runs) {
		for _, c := range p.Programs {
			if c.Kind == hosttree.Program {
				stay = append(stay, c.Path)
			}
		}
		return stay, nil
	}
	for _, c := range p.Programs {
		if err := p.Host.Apply(c); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Path, err)
		}
	}
	p.removeDirectories()
	return nil, nil
}

func (h Host) loadRecord() (record []placed, err error) {
	text, err := h.ReadOwned(RecordPath)
	if err != nil || text == nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &record); err != nil {
		return nil, fmt.Errorf("%s: %w", RecordPath, jsonError(text, err))
	}
	return record, nil
}

func (p *Plan) recorded(name string) bool {
	return slices.ContainsFunc(p.installed, func(f placed) bool { return f.Kind == hosttree.DaemonConfig && f.Path == name })
}

// registered reports whether an installation for these options is in the record.
func (p *Plan) registered(o Options) bool {
	return slices.ContainsFunc(p.installed, func(f placed) bool {
		return f.Kind == hosttree.DaemonConfig && slices.Contains(f.For, o.registration())
	})
}

// handlers returns the runtimes that installations for these options added.
func (p *Plan) handlers(o Options) (names []string) {
	for _, f := range p.installed {
		if f.Kind == hosttree.DaemonConfig && slices.Contains(f.For, o.registration()) {
			names = append(names, f.Handlers...)
		}
	}
	return names
}

// record adds the record of what the plan installs. Only the backups of programs are written before
// it: once a program is in the record, a later installation makes no backup of it.
func (p *Plan) record(o Options) error {
	name := o.registration()
	record := slices.DeleteFunc(slices.Clone(p.installed), func(f placed) bool { return f.Kind == hosttree.DaemonConfig && slices.Contains(f.For, name) })
	for _, c := range append([]hosttree.Change{{Path: RecordPath, After: []byte{}}}, p.Changes...) {
		for dir := path.Dir(c.Path); c.After != nil && !p.Host.Exists(dir); dir = path.Dir(dir) {
			if dir != path.Dir(RecordPath) && !slices.Contains(p.made, dir) { // removed with the record
				p.made = append(p.made, dir)
				record = append(record, placed{Path: dir, Kind: hosttree.Directory})
			}
		}
	}
	var originals []hosttree.Change
	for _, c := range p.Changes {
		i := slices.IndexFunc(record, func(f placed) bool { return f.Path == c.Path })
		switch {
		case c.Kind == hosttree.DaemonConfig && c.Path != p.configFile, c.After == nil:
			continue
		case i < 0 && c.Kind != hosttree.DaemonConfig && !c.Differs():
			// It existed before the installation: uninstalling must not remove it.
			continue
		case i < 0:
			if now, _ := p.Host.Read(c.Path); c.Kind == hosttree.Program && now != nil {
				original, err := p.Host.Change(hosttree.Original, c.Path+hosttree.BackupSuffix, now)
				if err != nil {
					return err
				}
				originals = append(originals, original)
			}
			i = len(record)
			record = append(record, placed{Path: c.Path, Kind: c.Kind})
		}
		f := &record[i]
		if now := sum(c.After); f.SHA256 != now {
			f.OldSHA256, f.SHA256 = f.SHA256, now
		}
		f.Version = version.Version
		if c.Kind == hosttree.DaemonConfig {
			f.Handlers = append(p.handlers(o), ownHandlers(c.After)...)
			slices.Sort(f.Handlers)
			f.Handlers = slices.Compact(f.Handlers)
		}
		if !slices.Contains(f.For, name) {
			f.For = append(f.For, name)
		}
	}
	change, err := p.Host.recordChange(record)
	p.Changes = slices.Concat(originals, []hosttree.Change{change}, p.Changes)
	return err
}

// release plans the removal of the files that no other registration needs. A file that changed
// since the installation stays.
func (p *Plan) release(o Options) error {
	name := o.registration()
	var keep []placed
	for _, f := range p.installed {
		if f.Kind == hosttree.Directory {
			keep = append(keep, f)
			p.made = append(p.made, f.Path)
			continue
		}
		f.For = slices.DeleteFunc(slices.Clone(f.For), func(n string) bool { return n == name })
		if len(f.For) > 0 {
			keep = append(keep, f)
			p.note("%s stays: %s needs it", f.Path, strings.Join(f.For, ", "))
			continue
		}
		// unregister handles these, except for the backup of a configuration that is gone or equals
		// it.
		now, _ := p.Host.Read(strings.TrimSuffix(f.Path, hosttree.BackupSuffix))
		if f.Kind == hosttree.DaemonConfig || f.Kind == hosttree.Original && now != nil && sum(now) != f.SHA256 {
			continue
		}
		c, err := p.Host.Change(f.Kind, f.Path, nil)
		switch {
		case err != nil:
			p.note("%s stays: %v", f.Path, err)
		case c.Before == nil:
		case !slices.Contains([]string{f.SHA256, f.OldSHA256}, sum(c.Before)) && !Unchanged(c.Before): // prepare regenerates the CDI file
			p.note("%s stays: it was changed since the installation", f.Path)
		case f.Kind == hosttree.Program && o.KeepPrograms:
			keep = append(keep, f)
		default:
			// An installation may have replaced a file.
			original, err := p.Host.Change(hosttree.Original, c.Path+hosttree.BackupSuffix, nil)
			if err != nil {
				return err
			}
			c.After = original.Before
			if f.Kind == hosttree.Program {
				keep, p.Programs = append(keep, f), append(p.Programs, c, original)
			} else {
				p.Changes = append(p.Changes, c, original)
			}
		}
	}
	change, err := p.Host.recordChange(keep)
	p.Changes = append(p.Changes, change)
	if err != nil || len(p.Programs) == 0 {
		return err
	}
	rest, err := p.Host.recordChange(slices.DeleteFunc(keep, func(f placed) bool {
		return slices.ContainsFunc(p.Programs, func(c hosttree.Change) bool { return c.Path == f.Path })
	}))
	rest.Before = change.After
	p.Programs = append(p.Programs, rest)
	return err
}

func (h Host) recordChange(record []placed) (hosttree.Change, error) {
	var text []byte
	if slices.ContainsFunc(record, func(f placed) bool { return f.Kind != hosttree.Directory }) {
		slices.SortFunc(record, func(a, b placed) int { return strings.Compare(a.Path, b.Path) })
		text = encodeJSON(record, "  ")
	}
	return h.Change(hosttree.Record, RecordPath, text)
}

// removeOriginals plans the removal of the backups of programs that equal their backups: a process
// was killed before it replaced them or after it restored them.
func (p *Plan) removeOriginals(o Options) error {
	for _, name := range Programs {
		program := path.Join(o.Registration.BinDir, name)
		now, _ := p.Host.Read(program)
		original, err := p.Host.Change(hosttree.Original, program+hosttree.BackupSuffix, nil)
		if err != nil {
			return err
		}
		if now != nil && bytes.Equal(now, original.Before) {
			p.Changes = append(p.Changes, original)
		}
	}
	return nil
}

func sum(text []byte) string {
	s := sha256.Sum256(text)
	return hex.EncodeToString(s[:])
}
