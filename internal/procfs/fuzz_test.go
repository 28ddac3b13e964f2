package procfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzProcess takes what a process says of itself: the name of its program, its environment and its
// cgroups. None of them changes who its parent is, when it started, or makes it root's.
func FuzzProcess(f *testing.F) {
	f.Add("sh", "A=b\x00", "0::/x\n")
	f.Add("a) S 1 1 1 0 -1 4 0 0", "=\x00\x00A", "1:name=systemd:/a:b\n::\n4:memory")
	f.Add("x\tUid:\t0\t0\t0\t0", "\xff", "\n\n")
	root := FS(f.TempDir())
	if err := os.Mkdir(filepath.Join(string(root), "7"), 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name, environ, cgroups string) {
		// The kernel escapes line feeds in status (proc_pid_status(5)).
		status := "Name:\t" + strings.ReplaceAll(name, "\n", "\\n") + "\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t000001ffffffffff\n"
		for file, text := range map[string]string{
			"stat":   fmt.Sprintf("7 (%s) S 42 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 4711 0\n", name),
			"status": status, "environ": environ, "cmdline": environ, "cgroup": cgroups, "comm": name + "\n",
		} {
			if err := os.WriteFile(root.Path(7, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := root.Stat(7); err != nil || got != (Stat{Parent: 42, Start: 4711}) {
			t.Errorf("%+v, %v", got, err)
		}
		if root.isRoot(7) {
			t.Error("it administers the host")
		}
		if got := root.Comm(7); got != name && got+"\n" != name {
			t.Errorf("the name is %q", got)
		}
		for _, path := range root.Cgroups(7) {
			if strings.Contains(path, "\n") {
				t.Errorf("cgroup %q", path)
			}
		}
	})
}
