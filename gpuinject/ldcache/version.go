package ldcache

import (
	"slices"
	"strconv"
	"strings"
)

// maxVersionParts bounds a version; NVIDIA's have two or three numbers.
const maxVersionParts = 4

// ParseVersion splits "580.95.05" into its numbers.
func ParseVersion(s string) ([]int, bool) {
	parts := strings.Split(s, ".")
	if len(s) > 64 || len(parts) > maxVersionParts {
		return nil, false
	}
	out := make([]int, len(parts))
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 31)
		if err != nil {
			return nil, false
		}
		out[i] = int(n)
	}
	return out, true
}

// Newer reports whether version a is newer than b. Versions compare number by number: 1000.1 is
// newer than 999.2, which a comparison of strings, as in libnvidia-container, gets wrong.
func Newer(a, b []int) bool { return slices.Compare(a, b) > 0 }
