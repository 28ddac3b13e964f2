package main

import (
	"strings"
	"testing"
)

func TestLimitNamesContainersAndAnAmount(t *testing.T) {
	state := t.TempDir()
	for args, want := range map[string]string{
		"":                                    "limit needs one CONTAINER, or --pod, and one AMOUNT",
		"web":                                 "limit needs one CONTAINER, or --pod, and one AMOUNT",
		"--pod a/b web 6Gi":                   "limit needs one CONTAINER, or --pod, and one AMOUNT",
		"web 6":                               "\"6\" is not an amount of memory",
		"--request x web 6Gi":                 "\"x\" is not an amount of memory",
		"--pod / 6Gi":                         "--pod \"/\" is not NAMESPACE/NAME", // of containers without a pod
		"--state " + state + " web 6Gi":       "no container \"web\" has a GPU",
		"--state " + state + " --pod a/b 6Gi": "pod \"a/b\" has no container with a GPU",
	} {
		code, out, errs := ctl(t, append([]string{"limit"}, strings.Fields(args)...)...)
		if code == 0 || out != "" || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("limit %s: status %d, %s%s, want %q", args, code, out, errs, want)
		}
	}
}
