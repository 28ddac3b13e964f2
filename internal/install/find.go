package install

import (
	"cmp"
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cmdline"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// findTarget selects the only daemon of the host, or of the target that the operator named, and
// returns it.
func (i *Installer) findTarget() (none runtimeclass.Found, err error) {
	if i.Containerd != "" {
		return none, nil
	}
	target := ""
	if i.TargetNamed || i.ConfigNamed {
		target = i.Target
	}
	found, all := runtimeclass.Find(i.Host, i.proc(), target), runtimeclass.Find(i.Host, i.proc(), "")
	if target != "" {
		err = i.refuseUnread(found, all)
	}
	switch {
	case err != nil || i.ConfigNamed || target != "" && len(found) == 0: // the daemon may be installed later
		return none, err
	case len(found) == 1:
		i.Target = found[0].Target
		i.ConfigFile = cmp.Or(found[0].ConfigFile, i.Configs[i.Target])
		return found[0], nil
	case len(found) == 0:
		if err := i.Host.RefuseDocker(""); err != nil {
			return none, err
		}
		return none, cmdline.Errorf("no %s below %s: name one with --target", daemonTitles(), i.Host.Root)
	}
	return none, cmdline.Errorf("found %s: name one with --target, or its configuration file", foundNames(found))
}

// refuseUnread returns an error if no daemon would read what is installed for a target or in its
// named configuration: at most a file identifies the target, and there is more evidence of another
// one.
func (i *Installer) refuseUnread(found, all []runtimeclass.Found) error {
	var files []string
	for _, d := range runtimeclass.Daemons() {
		if d.HasConfig() {
			files = append(files, d.Config)
		}
	}
	reads := func(f runtimeclass.Found) bool {
		return f.ConfigFile == i.ConfigFile || f.ConfigFile == "" && slices.Contains(files, i.ConfigFile)
	}
	exists := i.Host.Exists(i.ConfigFile)
	if i.ConfigNamed && !exists && len(all) > 0 && !slices.ContainsFunc(found, reads) {
		return cmdline.Errorf("%s does not exist, and no daemon here reads it: found %s", i.ConfigFile, foundNames(all))
	}
	if i.ConfigNamed && exists && len(found) == 0 {
		files, found = append(files, i.ConfigFile), []runtimeclass.Found{{Why: i.ConfigFile}}
	}
	isFile := func(f runtimeclass.Found) bool { return slices.Contains(files, f.Why) }
	// An earlier installation may have created the other target's file.
	weak := len(found) > 0 || i.Host.Exists(runtimeclass.RecordPath)
	others := slices.DeleteFunc(all, func(f runtimeclass.Found) bool { return f.Target == i.Target || weak && isFile(f) })
	if len(others) == 0 || len(found) > 0 && !isFile(found[0]) {
		return nil
	}
	but := ""
	if len(found) > 0 {
		but = " but the file " + found[0].Why
	}
	return cmdline.Errorf("no %s here%s; found %s: name one with --target, or install or start %[1]s first", i.Target, but, foundNames(others))
}

// proc returns the procfs of the host; "" for a tree.
func (i *Installer) proc() procfs.FS {
	if filepath.Clean(i.Host.Root) != "/" {
		return ""
	}
	return procfs.Host
}

// daemonTitles lists the daemons of a host: "a, b or c".
func daemonTitles() string {
	var titles []string
	for _, d := range runtimeclass.Daemons() {
		if d.Print == nil {
			titles = append(titles, d.Title)
		}
	}
	last := len(titles) - 1
	return strings.Join(titles[:last], ", ") + " or " + titles[last]
}

func foundNames(found []runtimeclass.Found) string {
	var list []string
	for _, f := range found {
		list = append(list, f.String())
	}
	return strings.Join(list, " and ")
}

// daemonProgram returns the program to ask for the configuration that it reads: none in a tree, if
// the operator gave the version of the daemon instead of a daemon, or if the running daemon's program
// is not to be executed: another one need not read the same.
func (i *Installer) daemonProgram(target string, found runtimeclass.Found) string {
	d := runtimeclass.DaemonOf(target)
	switch {
	case i.proc() == "" || i.Versions[d.VersionOf()] != "":
		return ""
	case i.Containerd == "" && found.Runs && found.Program == "" && !d.Generated:
		return ""
	}
	return cmp.Or(i.Containerd, found.Program, d.Program("/"))
}

// runningProgram returns the program of the daemon of a registration, as daemonProgram does.
func (i *Installer) runningProgram(o runtimeclass.Options) string {
	var found runtimeclass.Found
	for _, f := range runtimeclass.Find(i.Host, i.proc(), o.Target) {
		if cmp.Or(f.ConfigFile, i.Configs[o.Target]) == o.ConfigFile {
			found = f
		}
	}
	return i.daemonProgram(o.Target, found)
}

// daemonVersion returns the version that the operator gave, or else the version that the daemon's
// program prints. It executes nothing in a tree.
func (i *Installer) daemonVersion(ctx context.Context, found runtimeclass.Found) (none semver.Version, err error) {
	d := runtimeclass.DaemonOf(i.Target)
	for _, name := range slices.Sorted(maps.Keys(i.Versions)) {
		if i.Versions[name] != "" && name != d.VersionOf() {
			return none, cmdline.Errorf("--%s-version cannot be combined with --target %s", name, i.Target)
		}
	}
	if version := i.Versions[d.VersionOf()]; version != "" {
		v, err := semver.Parse(version)
		if err != nil {
			return none, cmdline.Errorf("--%s-version: %v", d.VersionOf(), err)
		}
		return v, nil
	}
	v, err := runtimeclass.DaemonVersion(ctx, i.daemonProgram(i.Target, found))
	if err != nil && i.Containerd == "" {
		// Without the version, the handler has the most widely supported form.
		return none, nil
	}
	return v, err
}
