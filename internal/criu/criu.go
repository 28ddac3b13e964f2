package criu

import (
	"fmt"
	"strings"
)

// fixedRunc are the first versions of runc's release lines with the fix. 1.6.0-rc.1 has none; no
// release candidate counts.
var fixedRunc = [][3]int{{1, 3, 7}, {1, 4, 4}, {1, 5, 3}, {1, 6, 0}}

// CheckRuntime returns an error unless the output of `<runtime> --version` is that of a runc or crun
// with the fix. A suffix of a distribution, as in 1.3.7-0ubuntu1 or 1.3.7+ds1, makes no difference.
func CheckRuntime(output string) error {
	line, _, _ := strings.Cut(output, "\n")
	var v [3]int
	var suffix string
	if n, _ := fmt.Sscanf(line, "runc version %d.%d.%d%s", &v[0], &v[1], &v[2], &suffix); n >= 3 {
		last := fixedRunc[len(fixedRunc)-1]
		safe := v[0] > last[0] || v[0] == last[0] && v[1] > last[1]
		for _, f := range fixedRunc {
			safe = safe || v[0] == f[0] && v[1] == f[1] && v[2] >= f[2]
		}
		if safe && !isCandidate(suffix) {
			return nil
		}
		return fmt.Errorf("%.64q has CVE-2026-119101: update runc to 1.3.7, 1.4.4, 1.5.3, 1.6.0 or later", line)
	}
	if n, _ := fmt.Sscanf(line, "crun version %d.%d%s", &v[0], &v[1], &suffix); n >= 2 {
		if (v[0] > 1 || v[0] == 1 && v[1] >= 31) && !isCandidate(suffix) {
			return nil
		}
		return fmt.Errorf("%.64q has CVE-2026-115520: update crun to 1.31 or later", line)
	}
	return fmt.Errorf("%.64q is neither runc nor crun", line)
}

// isCandidate reports whether a version with this suffix precedes the release of that number.
func isCandidate(suffix string) bool {
	suffix = strings.TrimLeft(suffix, "-~.")
	for _, word := range []string{"rc", "alpha", "beta"} {
		if strings.HasPrefix(suffix, word) {
			return true
		}
	}
	return false
}

// CheckCRIU returns an error unless the output of `criu --version` is that of a CRIU with the fix.
func CheckCRIU(output string) error {
	line, _, _ := strings.Cut(output, "\n")
	var v [3]int
	if n, _ := fmt.Sscanf(line, "Version: %d.%d.%d", &v[0], &v[1], &v[2]); n < 2 {
		return fmt.Errorf("%.64q is not the version of a CRIU", line)
	}
	if v[0] > 4 || v[0] == 4 && (v[1] > 3 || v[1] == 3 && v[2] >= 1) {
		return nil
	}
	return fmt.Errorf("CRIU %.64q has CVE-2026-119614: update CRIU to 4.3.1 or later", line)
}

// separators end the parts of the name of an external mount: "mnt[key]:value".
const separators = "[]:"

// HasSeparator reports whether a path has a character by which CRIU separates the parts of the name
// of an external mount.
func HasSeparator(path string) bool { return strings.ContainsAny(path, separators) }

// IsPlain reports whether CRIU reads a path back as it was written: it has no separator and
// no character with a meaning in a configuration file (criu(8)), such as a quote, a blank or a line
// feed.
func IsPlain(path string) bool {
	return !HasSeparator(path) && !strings.ContainsFunc(path, func(r rune) bool {
		return r <= ' ' || r == 0x7f || strings.ContainsRune(`"'\#`, r)
	})
}
