package runtimeclass

import (
	"path"
	"slices"
	"strings"
)

// ConfigFlag returns the configuration file on the command line of containerd or dockerd. It
// returns "" if there is none or its path is relative.
func ConfigFlag(args []string) string {
	for i, a := range args {
		name, value, found := strings.Cut(a, "=")
		if !slices.Contains([]string{"--config", "-config", "--c", "-c", "--config-file"}, name) {
			continue
		}
		if !found && i+1 < len(args) {
			value = args[i+1]
		}
		if path.IsAbs(value) {
			return value
		}
	}
	return ""
}

// defaultFlag returns the default runtime on the command line of dockerd, or "".
func defaultFlag(args []string) string {
	for i, a := range args {
		name, value, found := strings.Cut(a, "=")
		switch {
		case name == "--default-runtime" && found:
			return value
		case name == "--default-runtime" && i+1 < len(args):
			return args[i+1]
		}
	}
	return ""
}
