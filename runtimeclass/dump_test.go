package runtimeclass

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// dumper creates a program that prints one text as its dump as long as a file has no runtime of
// ours, and then another.
func dumper(t *testing.T, before, after string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "containerd")
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1 $3 $4\" = '--config config dump' ] || exit 9\nif grep -q runtimes.nvidia \"$2\"; then\n%s\nelse\n%s\nfi\n", after, before)
	check(t, os.WriteFile(program, []byte(script), 0o755))
	return program
}

func prints(text string) string { return "cat <<'END'\n" + text + "END" }

// A change after which containerd would read other settings is taken back.
func TestAChangeThatContainerdReadsDifferentlyIsTakenBack(t *testing.T) {
	const (
		stock = "[plugins.\"" + criV3 + "\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n  runtime_path = \"\"\n"
		kata  = "[plugins.\"" + criV3 + "\".containerd.runtimes.kata]\n  runtime_type = \"io.containerd.kata.v2\"\n"
		ours  = "[plugins.\"" + criV3 + "\".containerd.runtimes.nvidia]\n  runtime_type = \"" + RuntimeType + "\"\n"
		other = "[plugins.\"" + criV3 + "\".containerd.runtimes.nvidia]\n  runtime_type = \"io.containerd.kata.v2\"\n"
		hand  = "[plugins.\"" + criV3 + "\".containerd.runtimes.gpu]\n  runtime_type = \"" + RuntimeType + "\"\n"
		named = "[plugins.\"" + criV3 + "\".containerd]\n  default_runtime_name = \"nvidia\"\n"
	)
	for _, c := range []struct {
		name, before, after string
		want                string // of the error; "" for none
		reg                 Registration
		config              string // besides the version
	}{
		{name: "only our runtime", before: prints("imports = []\n" + stock + kata), after: prints("imports = ['/a']\n" + stock + kata + ours)},
		{name: "an empty value that was not there", before: prints(stock), after: prints(stock + "  snapshotter = \"\"\n" + ours)},
		{name: "our runtime as the default", before: prints(stock), after: prints(named + stock + ours), reg: Registration{Default: true}},
		{name: "another runtime is lost", before: prints(stock + kata), after: prints(stock + ours), want: "runtimes.kata.runtime_type"},
		{name: "another setting changes", before: prints("root = '/a'\n" + stock), after: prints("root = '/b'\n" + stock + ours), want: "lose root"},
		{name: "another setting is added", before: prints(stock), after: prints("root = '/b'\n" + stock + ours), want: "lose root"},
		{name: "our runtime is not read", before: prints(stock), after: prints(stock), want: `no runtime "nvidia"`},
		{name: "the default is not read", before: prints(stock), after: prints(stock + ours), reg: Registration{Default: true}, want: `default runtime would be "runc"`},
		{name: "the default changes without a request", before: prints(stock), after: prints("[plugins.\"" + criV3 + "\".containerd]\n  default_runtime_name = \"kata\"\n" + stock + ours), want: "default_runtime_name"},
		{name: "the new file cannot be read", before: prints(stock), after: "echo warning >&2; echo broken >&2; exit 1", want: `"broken"`},
		{name: "the old file cannot be read", before: "echo broken >&2; exit 1", after: prints(stock + ours), want: "nothing is changed"},
		{name: "another runtime of ours is lost", before: prints(stock + hand), after: prints(stock + ours), want: "runtimes.gpu.runtime_type",
			config: strings.ReplaceAll(hand, criV3, criV2)},
		{name: "a runtime that is built in", before: prints(other), after: prints(ours), want: `runtime "nvidia" of its own (io.containerd.kata.v2)`},
		{name: "a runtime that is built in, replaced", before: prints(other), after: prints(ours), reg: Registration{Replace: true}},
		{name: "CRI is switched off", before: prints("disabled_plugins = ['" + criV3 + "']\n"), after: prints("disabled_plugins = ['" + criV3 + "']\n")},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := tree(t, map[string]string{testConfig: "version = 2\n" + c.config})
			files := testtree.Contents(t, root)
			o := containerdOptions(c.reg)
			o.ConfigFile = filepath.Join(root, testConfig)
			p, err := register(Host{Daemon: v242, Program: dumper(t, c.before, c.after)}, o)
			check(t, err)
			err = p.Apply()
			if c.want == "" {
				if err != nil || reflect.DeepEqual(testtree.Contents(t, root), files) {
					t.Errorf("not applied: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
			if now := testtree.Contents(t, root); !reflect.DeepEqual(now, files) {
				t.Errorf("changed: %v", now)
			}
		})
	}
}

// A busy host is not a broken file.
func TestADumpThatTakesTooLong(t *testing.T) {
	defer func(d time.Duration) { answerTimeout = d }(answerTimeout)
	answerTimeout = 50 * time.Millisecond
	root := tree(t, map[string]string{testConfig: "version = 2\n"})
	files := testtree.Contents(t, root)
	o := containerdOptions(Registration{})
	o.ConfigFile = filepath.Join(root, testConfig)
	p, err := register(Host{Daemon: v242, Program: dumper(t, "exec sleep 60", "exec sleep 60")}, o)
	check(t, err)
	if err := p.Apply(); err == nil || !strings.Contains(err.Error(), "containerd has not printed its configuration within 50ms: try again") {
		t.Error(err)
	}
	if now := testtree.Contents(t, root); !reflect.DeepEqual(now, files) {
		t.Errorf("changed: %v", now)
	}
}

// uninstall removes nothing while containerd would still start this shim.
func TestUninstallIsTakenBackWhileContainerdHasARuntimeOfOurs(t *testing.T) {
	const ours = "[plugins.\"" + criV3 + "\".containerd.runtimes.gpu]\n  runtime_type = \"" + RuntimeType + "\"\n"
	const named = "[plugins.\"" + criV3 + "\".containerd]\n  default_runtime_name = \"gpu\"\n"
	for after, want := range map[string]string{"": "", ours: "would still have [gpu]", named: `default runtime would still be "gpu"`} {
		root := tree(t, map[string]string{testConfig: "version = 2\n"})
		o := containerdOptions(Registration{})
		o.ConfigFile = filepath.Join(root, testConfig)
		applied(t)(register(Host{Daemon: v242}, o))
		files := testtree.Contents(t, root)
		p, err := unregister(Host{Daemon: v242, Program: dumper(t, prints(after), prints(named+ours))}, o)
		check(t, err)
		err = p.Apply()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("error %v, want %q", err, want)
		}
		if unchanged := reflect.DeepEqual(testtree.Contents(t, root), files); unchanged != (want != "") {
			t.Errorf("%q: unchanged %v", want, unchanged)
		}
	}
}
