package runtimeclass

import (
	"path"
	"slices"
	"strings"
)

// ConfigFlag returns the configuration file on the command line of containerd or dockerd. It
// returns "" if there is none or its path is relative.
func ConfigFlag(args []string) string {
	values := flagValues(args, "--config", "-config", "--c", "-c", "--config-file")
	if i := slices.IndexFunc(values, path.IsAbs); i >= 0 {
		return values[i]
	}
	return ""
}

// defaultFlag returns the default runtime on the command line of dockerd, or "".
func defaultFlag(args []string) string {
	return append(flagValues(args, "--default-runtime"), "")[0]
}

// flagValues returns the values of a flag with these names, as --name=value or --name value.
func flagValues(args []string, names ...string) (values []string) {
	for i, a := range args {
		name, value, found := strings.Cut(a, "=")
		if !found && i+1 < len(args) {
			value = args[i+1]
		}
		if slices.Contains(names, name) {
			values = append(values, value)
		}
	}
	return values
}
