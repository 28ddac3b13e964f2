package runtimeclass

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// This file asks a daemon's program for its version, and containerd for what it will run: before and
// after a change, which are compared. Releases differ in which sections of a file they read, and
// whether they merge files before they migrate them: a correct table in the wrong section takes other
// runtimes away without a word.

// ErrNothingChanged is the error of Apply if the daemon would read another configuration than
// planned: the changes were not made, or were taken back.
var ErrNothingChanged = errors.New("nothing is changed")

// answerTimeout is how long a daemon's program has to answer: a host that is busy is slow. A variable
// for the tests.
var answerTimeout = time.Minute

// DaemonVersion asks a program of a daemon of this host for its version, as Command does. The version
// is unknown if the program is "".
func DaemonVersion(ctx context.Context, program string) (semver.Version, error) {
	if program == "" {
		return semver.Version{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	cmd, err := Command(ctx, program, "--version")
	if err != nil {
		return semver.Version{}, err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return semver.Version{}, fmt.Errorf("%s --version: %w: %.256q", program, err, out)
	}
	return semver.Parse(string(out))
}

// Command returns a command of a program of this host, or an error if users other than root can
// replace the program.
func Command(ctx context.Context, program string, args ...string) (*exec.Cmd, error) {
	real, err := trusted.Program(program) // guard: programs: none that others can replace, by check
	if err != nil {
		return nil, fmt.Errorf("not executed: %w", err)
	}
	cmd := exec.CommandContext(ctx, real, args...)
	cmd.Args[0] = program // the programs of k3s are links to one
	cmd.WaitDelay = time.Second
	return cmd, nil
}

// dumpFile returns the configuration to compare, or "": only containerd has such a command, and a
// change of a template is seen only after the distribution's next start.
func (p Plan) dumpFile() string {
	changed := p.changing(hosttree.DaemonConfig)
	if p.registrar == nil || p.Host.Program == "" || len(changed) == 0 {
		return ""
	}
	d := p.registrar.daemon()
	dropIn := slices.ContainsFunc(changed, func(name string) bool { return path.Base(name) == DropInName })
	if !d.IsContainerd || d.Generated && !dropIn {
		return ""
	}
	return p.mainFile
}

// applyCompared makes the changes of a plan, and takes them back if containerd's own dump then
// differs in more than this shim's runtimes.
func (p Plan) applyCompared(file string) error {
	before, err := p.Host.dump(file)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %s has not printed its configuration within %s: try again", ErrNothingChanged, p.Host.Program, answerTimeout)
	}
	if err != nil {
		return fmt.Errorf("%w: %s cannot read %s (%w): correct the file, or name the daemon's program with --containerd", ErrNothingChanged, p.Host.Program, file, err)
	}
	undo, err := p.Undo()
	if err == nil {
		err = p.apply()
	}
	if err != nil {
		return err
	}
	after, err := p.Host.dump(file)
	if err == nil {
		err = p.compare(before, after)
	} else {
		err = fmt.Errorf("%s ends with %w", p.Host.Program, err)
	}
	if err == nil {
		return nil
	}
	undone := undo.apply() // guard: installation: taken back
	if undone == nil {
		_, undone = undo.RemovePrograms(procfs.Host)
	}
	if undone != nil {
		return fmt.Errorf("%w; the changes could not be taken back: %w", err, undone)
	}
	return fmt.Errorf("%w: with %s %w", ErrNothingChanged, strings.Join(p.changing(hosttree.DaemonConfig), ", "), err)
}

// dumped is the configuration that containerd would start with, in its own words.
type dumped struct {
	settings map[string]any
	runtimes Configuration
}

// dump asks containerd for its whole configuration. containerd 1.7 cannot dump a missing file, but
// starts without one.
func (h Host) dump(file string) (none dumped, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	args := []string{"--config", file, "config", "dump"}
	if !h.Exists(file) {
		args = []string{"config", "default"}
	}
	cmd, err := Command(ctx, h.Program, args...)
	if err != nil {
		return none, err
	}
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return none, ctx.Err()
	}
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			lines := strings.Split(strings.TrimSpace(string(exit.Stderr)), "\n")
			err = fmt.Errorf("%w: %.256q", err, lines[len(lines)-1]) // warnings come first
		}
		return none, err
	}
	settings, err := tomledit.Decode(out)
	if err != nil {
		return none, err
	}
	sections := []string{criV3, criV2}
	if tomledit.Table(settings, "plugins", criV3) != nil {
		sections = sections[:1]
	}
	return dumped{settings, effective([]tomlFile{{config: settings, sections: sections}})}, nil
}

// compare returns an error unless the only difference is this shim's runtimes and a default that
// names one, and they are as planned.
func (p Plan) compare(before, after dumped) error {
	var ours []string
	left := oursIn(after.settings)
	for _, d := range []dumped{before, after} {
		for name, r := range d.runtimes.Runtimes {
			if r.Ours() && !slices.Contains(p.kept, name) { // guard: installation: other runtimes of ours
				ours = append(ours, name)
			}
		}
	}
	isOurs := func(name string) bool { return slices.Contains(ours, name) }
	// The runtime that our default names may be another program's by now.
	both := isOurs(before.runtimes.Default) || isOurs(after.runtimes.Default) || p.ownDefault != "" && before.runtimes.Default == p.ownDefault
	was, is := before.others(ours, both), after.others(ours, both)
	for key, value := range is {
		if was[key] == value {
			delete(was, key)
		} else {
			was[key] = value
		}
	}
	differ := slices.Sorted(maps.Keys(was))
	earlier := before.runtimes.Runtimes[p.Handler]
	handler, theDefault := after.runtimes.Runtimes[p.Handler], after.runtimes.Default
	switch {
	case len(differ) > 0: // guard: installation: no other setting changed
		return fmt.Errorf("containerd would also change or lose %s: move its runtimes to the section that this containerd writes (`containerd config migrate`), then run this again",
			strings.Join(differ[:min(len(differ), 4)], ", "))
	// guard: installation: built-in runtimes
	case p.Handler != "" && earlier.Type != "" && !earlier.Ours() && !p.replace:
		return fmt.Errorf("containerd has a runtime %q of its own (%s): use another --handler, or %s", p.Handler, earlier.Type, adviceReplace)
	case before.criDisabled():
		return nil
	case p.Handler != "" && !handler.Ours(): // guard: installation: read by the daemon
		return fmt.Errorf("containerd would have no runtime %q of this shim (%s): add it by hand", p.Handler, describe(handler))
	case p.byDefault != "" && theDefault != p.byDefault:
		return fmt.Errorf("containerd's default runtime would be %q and not %q: set default_runtime_name by hand", theDefault, p.byDefault)
	case p.Handler == "" && !p.registrar.daemon().Generated && len(left) > 0: // guard: installation: no runtime left
		return fmt.Errorf("containerd would still have %v, which start this shim: remove them from its files by hand, then uninstall again", left)
	// guard: installation: no default left
	case p.Handler == "" && isOurs(theDefault) && after.runtimes.Runtimes[theDefault].Type == "":
		return fmt.Errorf("containerd's default runtime would still be %q: remove default_runtime_name from its files by hand, then uninstall again", theDefault)
	}
	return nil
}

// criDisabled reports whether the daemon does not read the runtimes.
func (d dumped) criDisabled() bool {
	return d.runtimes.CRIDisabled || tomledit.Table(d.settings, "plugins", criV3) == nil && tomledit.Table(d.settings, "plugins", criV2) == nil
}

// others returns all settings by their path except the runtimes with these names and, if it is to
// be left out, the name of the default runtime. Empty values count as missing, because a table that
// is written out has them and a built-in one does not. The list of imports and the version are
// those of the files, not of what runs.
func (d dumped) others(names []string, exceptDefault bool) map[string]string {
	for _, section := range []string{criV1, criV2, criV3} {
		containerd := tomledit.Table(d.settings, "plugins", section, "containerd")
		if exceptDefault {
			delete(containerd, "default_runtime_name")
		}
		for _, name := range names {
			delete(tomledit.Table(containerd, "runtimes"), name)
		}
	}
	delete(d.settings, "imports")
	delete(d.settings, "version")
	all := map[string]string{}
	flatten("", d.settings, all)
	return all
}

// flatten adds the values of a table that are not empty, by their path.
func flatten(prefix string, table map[string]any, to map[string]string) {
	for key, v := range table {
		if sub, ok := v.(map[string]any); ok {
			flatten(prefix+key+".", sub, to)
			continue
		}
		switch text := strings.TrimSpace(string(encodeJSON(v, ""))); text {
		case `""`, "0", "false", "[]", "null", `"podsandbox"`: // the default of sandboxer
		default:
			to[prefix+key] = text
		}
	}
}

// Apply makes the changes, each by an atomic rename. A file that changed since the plan was made is
// left alone. If the daemon can be asked, it must then read the same configuration as before, except
// for this shim's runtimes: otherwise all changes are taken back.
func (p Plan) Apply() error {
	if file := p.dumpFile(); file != "" {
		return p.applyCompared(file)
	}
	return p.apply()
}
