package ldcache

import (
	"strconv"
	"strings"
)

// maxVersionParts bounds a version; NVIDIA's have two or three numbers.
const maxVersionParts = 4

// parseVersion splits "580.95.05" into its numbers.
func parseVersion(s string) ([]int, bool) {
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

// newer compares versions number by number: 1000.1 is newer than 999.2, which a
// comparison of strings, as in libnvidia-container, gets wrong.
func newer(a, b []int) bool {
	for i := range max(len(a), len(b)) {
		var m, n int
		if i < len(a) {
			m = a[i]
		}
		if i < len(b) {
			n = b[i]
		}
		if m != n {
			return m > n
		}
	}
	return false
}
