package advisories

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
)

// Check returns the advisories that a component's version is affected by. The kernel is the running
// one; advisories for some kernels count only if it is known and one of them.
func Check(component string, v, kernel semver.Version) []Advisory {
	var list []Advisory
	for _, a := range Table {
		if a.Component == component && a.affects(v, kernel) {
			list = append(list, a)
		}
	}
	return list
}

// CheckRuntime returns an error unless the output of `<runtime> --version` is that of a runc or crun
// that can write and restore checkpoints safely: no advisory of the class Restore affects it.
func CheckRuntime(output string) error {
	line, _, _ := strings.Cut(output, "\n")
	component, text, _ := strings.Cut(line, " version ")
	text, _, _ = strings.Cut(text, " ")
	v, err := semver.Parse(text)
	if err != nil || component != Runc && component != Crun {
		return fmt.Errorf("%.64q is neither runc nor crun", line)
	}
	if err := checkRestore(component, v); err != nil {
		return fmt.Errorf("%.64q %w", line, err)
	}
	return nil
}

// CheckCRIU is CheckRuntime for the output of `criu --version`.
func CheckCRIU(output string) error {
	line, _, _ := strings.Cut(output, "\n")
	text, ok := strings.CutPrefix(line, "Version: ")
	v, err := semver.Parse(text)
	if err != nil || !ok {
		return fmt.Errorf("%.64q is not the version of a CRIU", line)
	}
	if err := checkRestore(CRIU, v); err != nil {
		return fmt.Errorf("CRIU %.64q %w", line, err)
	}
	return nil
}

func checkRestore(component string, v semver.Version) error {
	for _, a := range Check(component, v, semver.Version{}) {
		if a.Class == Restore { // guard: advisories: fixed versions for checkpoints
			return fmt.Errorf("has %s: update %s to %s or later", a.ID, component, strings.Join(a.Fixed, ", "))
		}
	}
	return nil
}

// Safe returns the versions with which Check finds nothing, the first of each release line.
func Safe(component string, kernel semver.Version) []string {
	var list []string
	for _, a := range Table {
		for _, text := range a.Fixed {
			if a.Component == component && !slices.Contains(list, text) && len(Check(component, version(text), kernel)) == 0 {
				list = append(list, text)
			}
		}
	}
	slices.SortFunc(list, func(a, b string) int { return version(a).Compare(version(b)) })
	return list
}

func (a Advisory) affects(v, kernel semver.Version) bool {
	// guard: advisories: kernels
	if len(a.Kernels) > 0 && (!kernel.Known() || kernel.Compare(version(a.Kernels[0])) < 0 || kernel.Compare(version(a.Kernels[1])) >= 0) {
		return false
	}
	if a.Since != "" && v.Compare(version(a.Since)) < 0 {
		return false
	}
	var after semver.Version // the line after the last one with a fix
	for _, text := range a.Fixed {
		f := version(text)
		after = semver.Version{Major: f.Major, Minor: f.Minor + 1}
		sameLine := f.Major == v.Major && f.Minor == v.Minor
		if a.Component == Driver { // 580 is a line
			after, sameLine = semver.Version{Major: f.Major + 1}, f.Major == v.Major
		}
		if sameLine && v.Compare(f) >= 0 {
			return false
		}
	}
	return len(a.Fixed) == 0 || v.Compare(after) < 0 // guard: advisories: lines without a fix
}

// String returns the id with what is known about it.
func (a Advisory) String() string {
	if a.Effect == "" {
		return a.ID + " (effect not published)"
	}
	return fmt.Sprintf("%s (%s)", a.ID, a.Effect)
}

// Age returns how long ago the sources were read.
func Age(now time.Time) time.Duration {
	day, _ := time.Parse(time.DateOnly, Reviewed) // a test parses it
	return now.Sub(day)
}

// version parses a version of the table.
func version(text string) semver.Version {
	v, _ := semver.Parse(text) // a test parses all
	return v
}
