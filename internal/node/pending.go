package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// pendingRestart has a line for each registration whose daemon has to restart: from before the
// daemon's configuration changes until the daemon has read it. A boot removes the file.
const pendingRestart = "/run/nvidia-shim-node.restart"

func pendingLine(o runtimeclass.Options) string { return o.Target + " " + o.ConfigFile + "\n" }

func pendingLines() []string {
	text, _ := os.ReadFile(pendingRestart)
	return slices.Collect(strings.Lines(string(text)))
}

// setPending adds a line to pendingRestart, or removes it.
func setPending(line string, pending bool) error {
	hosttree.Tree{}.RemoveTemporary(filepath.Dir(pendingRestart))
	lines := slices.DeleteFunc(pendingLines(), func(l string) bool { return l == line })
	if pending {
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return os.RemoveAll(pendingRestart)
	}
	return atomicfile.Write(pendingRestart, []byte(strings.Join(lines, "")), 0o600)
}
