package runtimeclass

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// A daemon's own `config migrate` writes its whole configuration without our marks. Afterwards
// install adopts its runtime, and uninstall leaves no runtime of ours and no default without its shim.
func TestContainerdMigratesAnInstallation(t *testing.T) {
	all := daemons(t)
	if len(all) == 0 {
		t.Skip("NOT TESTED: no bin/tools/containerd and bin/daemons: run `make tools daemons`")
	}
	record := RecordPath
	t.Cleanup(func() { RecordPath = record })
	for _, program := range all {
		daemon, err := DaemonVersion(t.Context(), program)
		check(t, err)
		t.Run(daemon.String(), func(t *testing.T) {
			dir := t.TempDir()
			RecordPath = filepath.Join(dir, "record/installed.json")
			h, o := Host{Daemon: daemon, Program: program}, options(t)
			o.ConfigFile, o.Registration.BinDir, o.Registration.Default = filepath.Join(dir, "config.toml"), filepath.Join(dir, "bin"), true
			o.PrepareUnit, o.WriteShimConfig, o.ShimConfig = false, false, filepath.Join(dir, "shim.toml")
			write(t, o.ConfigFile, "version = 2\n"+runtimesIn(criV2))
			dump := func() (text []byte, c Configuration) {
				t.Helper()
				cmd, err := Command(t.Context(), program, "--config", o.ConfigFile, "config", "dump")
				check(t, err)
				text, err = cmd.Output()
				check(t, err)
				d, err := h.dump(o.ConfigFile)
				check(t, err)
				return text, d.runtimes
			}
			applied(t)(Install(h, o))
			migrated, c := dump()
			if !c.Runtimes["nvidia"].Ours() || c.Default != "nvidia" {
				t.Fatalf("not installed: %+v", c)
			}
			// The default directory of imports is this host's own.
			migrated = regexp.MustCompile(`(?s)\nimports = \[.*?\]`).ReplaceAll(migrated, []byte("\nimports = []"))
			if bytes.Contains(migrated, []byte("/conf.d/")) || slices.Contains(strings.Split(string(migrated), "\n"), "# <<< nvidia-shim") {
				t.Fatalf("not migrated:\n%s", migrated)
			}
			write(t, o.ConfigFile, string(migrated))
			o.Registration.Default = false
			for range 2 {
				applied(t)(Install(h, o))
				if _, c := dump(); !c.Runtimes["nvidia"].Ours() || c.Default != "nvidia" {
					t.Errorf("installed again: %+v", c)
				}
			}
			p := applied(t)(Uninstall(h, o))
			if stay, err := p.RemovePrograms(procfs.FS(t.TempDir())); err != nil || len(stay) > 0 {
				t.Errorf("%v stay, %v", stay, err)
			}
			text, c := dump()
			if bytes.Contains(text, []byte(RuntimeType)) || c.Runtimes["nvidia"].Type != "" || c.Default != "runc" && c.Default != "" {
				t.Errorf("left: %+v", c)
			}
			if c.Runtimes["kata"].Type == "" || c.Runtimes["runc"].Options["SystemdCgroup"] != true {
				t.Errorf("lost: %+v", c)
			}
			if _, err := os.Stat(filepath.Join(o.Registration.BinDir, version.Shim)); err == nil {
				t.Error("the shim is left")
			}
		})
	}
}
