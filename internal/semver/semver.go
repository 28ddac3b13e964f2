package semver

import (
	"cmp"
	"fmt"
	"regexp"
)

// Version is a program's version, such as containerd's or runc's. The zero value is an unknown one.
type Version struct {
	Major, Minor, Patch int
	// Suffix is what follows: "-rc.1" marks a pre-release; "~ds1" and "-k3s1" come from a
	// distribution.
	Suffix string
}

var (
	versionText = regexp.MustCompile(`(?:^|[\s:])v?(\d{1,6}\.\d{1,6}\.\d{1,6})([-~+][-~+.0-9A-Za-z]*)?(?:[\s,]|$)`)
	preRelease  = regexp.MustCompile(`^[-~](rc|beta|alpha)`)
	developer   = regexp.MustCompile(`^\+|^-[0-9]+-g[0-9a-f]+|^-dirty`)
)

// Parse reads the first version in a program's --version output.
func Parse(output string) (Version, error) {
	m := versionText.FindStringSubmatch(output)
	if m == nil {
		return Version{}, fmt.Errorf("no version in %.256q", output)
	}
	v := Version{Suffix: m[2]}
	_, err := fmt.Sscanf(m[1], "%d.%d.%d", &v.Major, &v.Minor, &v.Patch)
	return v, err
}

func (v Version) String() string {
	if !v.Known() {
		return "unknown"
	}
	return fmt.Sprintf("%d.%d.%d%s", v.Major, v.Minor, v.Patch, v.Suffix)
}

// Known reports whether v is not the zero value.
func (v Version) Known() bool { return v != Version{} }

// AtLeast reports whether v is major.minor.patch or newer. A pre-release comes before its release.
func (v Version) AtLeast(major, minor, patch int) bool {
	c := cmp.Or(cmp.Compare(v.Major, major), cmp.Compare(v.Minor, minor), cmp.Compare(v.Patch, patch))
	return c > 0 || c == 0 && !preRelease.MatchString(v.Suffix)
}

// Distribution reports whether a distribution packaged this version under its own number, possibly
// with fixes from later versions.
func (v Version) Distribution() bool {
	return v.Suffix != "" && !preRelease.MatchString(v.Suffix) && !developer.MatchString(v.Suffix)
}
