package semver

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/mod/semver"
)

// Version is a program's version, such as containerd's or runc's. The zero value is an unknown one.
type Version struct {
	Major, Minor, Patch int
	// Suffix is what follows: "-rc.1" marks a pre-release; anything else, such as "+ds1",
	// "-0ubuntu1", "-4.fc43", "-k3s1" or "-12-gabcdef", comes from a distribution or a build of the
	// release or of what followed it.
	Suffix string
}

// Compiled on first use: a start of the shim needs neither.
var (
	versionText = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?:^|[\s:])v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?([-~+._][-~+._0-9A-Za-z]*)?(?:[\s,]|$)`)
	})
	preRelease = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[-~.](rc|beta|alpha)\.?(\d*)`) })
)

// Parse reads the first version in a program's --version output. A missing patch number is 0.
func Parse(output string) (Version, error) {
	m := versionText().FindStringSubmatch(output)
	if m == nil {
		return Version{}, fmt.Errorf("no version in %.256q", output)
	}
	number := func(text string) int { n, _ := strconv.Atoi(text); return n } // at most six digits
	return Version{number(m[1]), number(m[2]), number(m[3]), m[4]}, nil
}

func (v Version) String() string {
	if !v.Known() {
		return "unknown"
	}
	return fmt.Sprintf("%d.%d.%d%s", v.Major, v.Minor, v.Patch, v.Suffix)
}

// Known reports whether v is not the zero value.
func (v Version) Known() bool { return v != Version{} }

// Compare returns -1, 0 or 1 if v is before, equal to or after other, by the upstream versions: a
// pre-release comes before its release, and a distribution's suffix does not count.
func (v Version) Compare(other Version) int { return semver.Compare(v.upstream(), other.upstream()) }

// AtLeast reports whether v is major.minor.patch or newer.
func (v Version) AtLeast(major, minor, patch int) bool {
	return v.Compare(Version{Major: major, Minor: minor, Patch: patch}) >= 0
}

// upstream returns the version that upstream gave it. Debian writes "~rc1" for "-rc.1".
func (v Version) upstream() string {
	text := fmt.Sprintf("v%d.%d.%d", v.Major, v.Minor, v.Patch)
	if m := preRelease().FindStringSubmatch(v.Suffix); m != nil { // guard: advisories: pre-releases
		text += "-" + m[1] + "." + cmp.Or(strings.TrimLeft(m[2], "0"), "0")
	}
	return text
}
