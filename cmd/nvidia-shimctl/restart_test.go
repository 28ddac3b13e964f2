package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// fakeSystemctl puts a systemctl first in PATH that records its arguments, one call a line, and
// runs the script. calls returns the recorded calls.
func fakeSystemctl(t *testing.T, script string) (calls func() []string) {
	t.Helper()
	dir := t.TempDir()
	record := filepath.Join(dir, "calls")
	write(t, filepath.Join(dir, "systemctl"), "#!/bin/sh\nprintf '%s|' \"$@\" >> '"+record+"'\necho >> '"+record+"'\n"+script+"\n")
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	return func() []string {
		data, err := os.ReadFile(record)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Fields(string(data))
	}
}

// onThisHost makes a host whose files are all below a directory, and returns the arguments of
// install and uninstall for it. It does not use --root, because --restart needs the root of this
// host.
func onThisHost(t *testing.T) (config string, install, uninstall []string) {
	t.Helper()
	root, daemon, from := installTree(t, "v2.4.2", containerdTOML)
	useCDIFile(t, filepath.Join(root, cdiFile))
	config = filepath.Join(root, runtimeclass.DefaultContainerdConfig)
	common := []string{"--containerd-config", config, "--bin-dir", filepath.Join(root, "bin")}
	return config, slices.Concat([]string{"install", "--containerd", daemon, "--from", from}, common), slices.Concat([]string{"uninstall"}, common)
}

func TestInstallRestartsTheDaemonOnlyWhenAskedToAndNeeded(t *testing.T) {
	calls := fakeSystemctl(t, "echo restarting")
	config, install, uninstall := onThisHost(t)
	once := []string{"restart|containerd|"}
	for _, step := range []struct {
		name string
		args []string
		want []string
		// says must be on stdout, saysNot must not.
		says, saysNot string
	}{
		{"a dry run", append(slices.Clip(install), "--dry-run", "--restart", "--prepare-unit"), nil, "", ""},
		{"without --restart", install, nil, "not restarted: run `systemctl restart containerd`", ""},
		{"nothing to change", append(slices.Clip(install), "--restart"), nil, "", ""},
		{"uninstall without --restart", append(slices.Clip(uninstall), "--keep-programs"), nil, "", ""},
		{"with --restart", append(slices.Clip(install), "--restart"), once, "", "restart"},
		{"uninstall with --restart", append(slices.Clip(uninstall), "--restart"), append(once, once...), "", "not restarted"},
	} {
		status, out, errs := ctl(t, step.args...)
		if status != 0 || !strings.Contains(out, step.says) || step.saysNot != "" && strings.Contains(out, step.saysNot) {
			t.Fatalf("%s: status %d, %s %s", step.name, status, out, errs)
		}
		if got := calls(); !slices.Equal(got, step.want) {
			t.Fatalf("%s: systemctl was called with %q, want %q", step.name, got, step.want)
		}
	}
	if data, err := os.ReadFile(config); err != nil || string(data) != containerdTOML {
		t.Errorf("%s %v", data, err)
	}
}

func TestInstallWhoseRestartFailsKeepsItsFilesAndSaysWhatToDo(t *testing.T) {
	calls := fakeSystemctl(t, "echo 'Job for containerd.service failed.' >&2\nexit 5")
	config, install, uninstall := onThisHost(t)
	root := filepath.Dir(filepath.Dir(filepath.Dir(config)))
	status, _, errs := ctl(t, append(install, "--restart")...)
	if status != 1 || !slices.Equal(calls(), []string{"restart|containerd|"}) {
		t.Errorf("status %d, calls %q", status, calls())
	}
	contains(t, errs, "Job for containerd.service failed.", "nvidia-shimctl: systemctl restart containerd: exit status 5: the files are changed and stay so",
		"`journalctl -u containerd`", "run `systemctl restart containerd` by hand")
	contains(t, testtree.Tree(t, root)[runtimeclass.DefaultContainerdConfig], "nvidia")

	// A daemon that was not restarted may still start the shim.
	if status, _, errs := ctl(t, append(uninstall, "--restart")...); status != 1 || !strings.Contains(errs, "by hand, and uninstall again to remove the programs") {
		t.Errorf("uninstall: status %d, %s", status, errs)
	}
	left := testtree.Tree(t, root)
	if !strings.HasSuffix(left[runtimeclass.DefaultContainerdConfig], containerdTOML) {
		t.Errorf("uninstall left %s", left[runtimeclass.DefaultContainerdConfig])
	}
	for _, name := range runtimeclass.Programs {
		if left["/bin/"+name] == "" {
			t.Errorf("uninstall removed %s before the daemon knew", name)
		}
	}
}

// k3s and RKE2 have a unit for servers and one for agents.
func TestTheActiveOneOfSeveralUnitsIsRestarted(t *testing.T) {
	asked := []string{"is-active|--quiet|k3s|", "is-active|--quiet|k3s-agent|"}
	for _, c := range []struct {
		name, script string
		calls        []string
		err          string
	}{
		{"the server", "", []string{asked[0], "restart|k3s|"}, ""},
		{"the agent", `[ "$3" != k3s ]`, append(slices.Clone(asked), "restart|k3s-agent|"), ""},
		{"none", `[ "$1" = restart ]`, asked, "none of k3s, k3s-agent is active: nothing was restarted; the changes take effect"},
		{"an agent that fails", `[ "$3" = k3s-agent ]`, append(slices.Clone(asked), "restart|k3s-agent|"), "systemctl restart k3s-agent: exit status 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls := fakeSystemctl(t, c.script)
			restart := runtimeclass.Restart{Verb: "restart", Units: []string{"k3s", "k3s-agent"}}
			err := restart.Run(t.Context(), io.Discard)
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v, want an error with %q", err, c.err)
			}
			if got := calls(); !slices.Equal(got, c.calls) {
				t.Errorf("systemctl was called with %q, want %q", got, c.calls)
			}
		})
	}
}
