package check

import (
	"fmt"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Levels of a finding.
const (
	OK      = "ok"
	Warning = "warning"
	Problem = "problem"
)

// Finding is the result of a check. One that is not OK has a fix.
type Finding struct {
	Check   string `json:"check"`
	Level   string `json:"level"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`
}

// Options say what to check.
type Options struct {
	// Root is the root of the file system: "/".
	Root string
	// Proc is the procfs of the node.
	Proc procfs.FS
	// Config is the shim's configuration file; if empty, the one that containerd's environment
	// names, or the default.
	Config string
	// Target is the daemon to check, as in package runtimeclass; if empty, the one whose
	// configuration is named, or that runs or is installed.
	Target string
	// Containerd is containerd's program; if empty, the running one, or the one in PATH.
	Containerd string
	// Configs are the configuration files of daemons, by their names; without one, that of the running
	// daemon.
	Configs map[string]string
	// CDI makes the CDI specification of this host.
	CDI func() ([]byte, error)
}

func fine(format string, args ...any) []Finding { return finding(OK, "", format, args...) }

func warning(fix, format string, args ...any) []Finding {
	return finding(Warning, fix, format, args...)
}

func problem(fix, format string, args ...any) []Finding {
	return finding(Problem, fix, format, args...)
}

func finding(level, fix, format string, args ...any) []Finding {
	message := strings.ReplaceAll(strings.TrimSpace(fmt.Sprintf(format, args...)), "\n", " ")
	return []Finding{{Level: level, Message: message, Fix: fix}}
}
