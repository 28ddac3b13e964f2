package check

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/advisories"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
)

// maxAge is the age from which the table of advisories is too old to rely on.
const maxAge = 90 * 24 * time.Hour

// checkAdvisories checks the age of the table that versions are compared with.
func checkAdvisories(now time.Time) []Finding {
	age := advisories.Age(now)
	if age > maxAge { // guard: advisories: age
		return warning("install a later release of this project, or read what the projects published since",
			"the table of advisories is %d days old: later ones are unknown to check", int(age.Hours()/24))
	}
	return fine("versions are compared with the advisories known on %s", advisories.Reviewed)
}

// checkVersion compares a component's version with the table of advisories. Whatever it is, that is
// a warning: a distribution may have added the fix to an older version.
func (n *node) checkVersion(component string, v semver.Version) []Finding {
	kernel, _ := semver.Parse(n.kernel()) // if it is unknown, advisories for some kernels do not count
	list := advisories.Check(component, v, kernel)
	if len(list) == 0 {
		return fine("%s %s", component, v)
	}
	var texts []string
	for _, a := range list {
		texts = append(texts, a.String())
	}
	fix := "no version without them is known"
	if safe := advisories.Safe(component, kernel); len(safe) > 0 {
		fix = "update " + component + " to " + strings.Join(safe, ", ") + " or later, or check that its package has the fixes"
	}
	// guard: advisories: no refusal
	return warning(fix, "%s %s is affected by %s", component, v, strings.Join(texts, ", "))
}

// kernel returns the release of the running kernel, or "".
func (n *node) kernel() string {
	text, _ := os.ReadFile(filepath.Join(n.config.Host.ProcRoot, "sys/kernel/osrelease"))
	return strings.TrimSpace(string(text))
}
