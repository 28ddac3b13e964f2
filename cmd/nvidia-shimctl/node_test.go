package main

import (
	"strings"
	"testing"
)

// The rest is tested in a machine with systemd, as a container with the node's image.
func TestNodeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no time between rounds": {[]string{"--interval", "0s"}, "--interval has to be positive"},
		"a root that is none":    {[]string{"--host-root", "/does/not/exist"}, "--host-root: "},
		"a target that is none":  {[]string{"--target", "kind"}, "runs containerd"},
		"an argument":            {[]string{"now"}, `unexpected argument "now"`},
	} {
		status, _, errs := ctl(t, append([]string{"node"}, c.args...)...)
		if status != 2 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: status %d, %s", name, status, errs)
		}
	}
}
