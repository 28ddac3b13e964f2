package runtimeclass

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
)

// reencode writes a file again as programs do: its content stays and its comments go.
func reencode(t *testing.T, h Host, name string) string {
	t.Helper()
	config, err := tomledit.Decode(read(t, h.Real(name)))
	check(t, err)
	text, err := toml.Marshal(config)
	check(t, err)
	write(t, h.Real(name), string(text))
	return string(text)
}

func theConfiguration(t *testing.T, h Host) Configuration {
	t.Helper()
	c, err := ReadConfiguration(h, testConfig)
	check(t, err)
	return c
}

// A configuration that was written out again has no marks: install adopts its handler, keeps the
// original and changes nothing, and uninstall removes it with the default that names it.
func TestOurRuntimeWithoutMarks(t *testing.T) {
	for config, daemon := range map[string]semver.Version{"v2-1.7.toml": v1735, "default-2.4.2.toml": v242, "none": v242} {
		for _, again := range []Registration{{}, {Default: true}, {Replace: true}, {Handler: "gpu"}} {
			h, o := containerdTree(t, config, "", daemon), options(t)
			if config == "default-2.4.2.toml" { // without imports the main file is edited
				text := strings.Replace(string(fixture(t, config)), "/etc/containerd/conf.d/*.toml", "/etc/none", 1)
				write(t, h.Real(testConfig), text)
			}
			before := testtree.Contents(t, h.Root)
			o.Registration.Default = true
			applied(t)(Install(h, o))
			text := reencode(t, h, testConfig)
			o.Registration = again.filled()
			p := applied(t)(Install(h, o))
			if again.Handler == "" && (p.Changed() || string(read(t, h.Real(testConfig))) != text) {
				t.Errorf("%s, %+v: changed\n%s", config, again, p.Diff())
			}
			if c := theConfiguration(t, h); !c.Runtimes["nvidia"].Ours() || !c.Runtimes[o.Registration.Handler].Ours() || c.Default != "nvidia" {
				t.Errorf("%s, %+v: %+v", config, again, c)
			}
			backup, ok := testtree.Contents(t, h.Root)[testConfig+hosttree.BackupSuffix]
			if ok != (config != "none") || backup != before[testConfig] {
				t.Errorf("%s, %+v: the back-up is not the original", config, again)
			}
			// The record has the first name, too.
			if removal := uninstall(t, h, o); len(removal.NeededBy) > 0 {
				t.Errorf("%s, %+v: needed by %v", config, again, removal.NeededBy)
			}
			if text := string(read(t, h.Real(testConfig))); strings.Contains(text, "nvidia") {
				t.Errorf("%s, %+v: left\n%s", config, again, text)
			}
			if n := programs(t, h); n != 0 {
				t.Errorf("%d programs left", n)
			}
		}
	}
}

// NVIDIA's toolkit freezes what it finds, with our runtime, in a file of its own.
func TestOurRuntimeInAFileOfNVIDIAs(t *testing.T) {
	const theirs = "/etc/containerd/conf.d/99-nvidia.toml"
	h, o := containerdTree(t, "default-2.4.2.toml", "", v242), options(t)
	o.Registration.Default = true
	applied(t)(Install(h, o))
	frozen := "version = 3\n[plugins.'" + criV3 + "'.containerd]\n  default_runtime_name = 'nvidia'\n" +
		"[plugins.'" + criV3 + "'.containerd.runtimes.nvidia]\n  runtime_type = '" + RuntimeType + "'\n" +
		"  [plugins.'" + criV3 + "'.containerd.runtimes.nvidia.options]\n    BinaryName = '/usr/bin/nvidia-container-runtime'\n"
	write(t, h.Real(theirs), frozen)
	o.Registration.Default = false
	applied(t)(Install(h, o))
	if r := theConfiguration(t, h).Runtimes["nvidia"]; !r.Ours() || r.Options["BinaryName"] != nil {
		t.Errorf("installed: %+v", r)
	}
	write(t, h.Real(theirs), frozen)
	uninstall(t, h, o)
	if c := theConfiguration(t, h); len(c.Runtimes["nvidia"].Type) > 0 || c.Default != "runc" {
		t.Errorf("left: %+v", c)
	}
}

// A runtime of this shim that cannot be taken out keeps uninstall from removing anything.
func TestARuntimeThatCannotBeTakenOutKeepsThePrograms(t *testing.T) {
	h, o := containerdTree(t, "v2-1.7.toml", "", v1735), options(t)
	applied(t)(Install(h, o))
	write(t, h.Real(testConfig), "version = 2\n[plugins.\""+criV2+"\".containerd]\nruntimes = { nvidia = { runtime_type = \""+RuntimeType+"\" } }\n")
	before := testtree.Contents(t, h.Root)
	if _, err := Uninstall(h, o); err == nil || !strings.Contains(err.Error(), testConfig) || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("error %v", err)
	}
	if now := testtree.Contents(t, h.Root); !reflect.DeepEqual(now, before) {
		t.Errorf("changed: %v", now)
	}
}

// Runtimes of this shim that an operator wrote keep their options, until uninstall removes the
// programs.
func TestARuntimeWrittenByHandKeepsItsOptions(t *testing.T) {
	hand := func(name string) string {
		base := "[plugins.\"" + criV2 + "\".containerd.runtimes." + name + "]\n  runtime_type = \"" + RuntimeType + "\"\n"
		return base + strings.Replace(base, "]\n  runtime_type = \""+RuntimeType+"\"\n", ".options.policy]\n    accept-env-when-unprivileged = true\n", 1)
	}
	for _, name := range []string{"nvidia", "other"} {
		h, o := containerdTree(t, string(fixture(t, "v2-1.7.toml"))+hand(name), "", v1735), options(t)
		want := theConfiguration(t, h).Runtimes[name]
		if want.Options["policy"] == nil {
			t.Fatalf("no options: %+v", want)
		}
		p, err := unregister(h, o)
		check(t, err)
		if p.Changed() {
			t.Errorf("%s: without an installation uninstall changes\n%s", name, p.Diff())
		}
		for range 2 {
			applied(t)(Install(h, o))
			c := theConfiguration(t, h)
			if got := c.Runtimes[name]; name == "other" && !reflect.DeepEqual(got, want) || !c.Runtimes["nvidia"].Ours() {
				t.Errorf("%s: %+v, want %+v", name, got, want)
			}
		}
		if h.Exists(testConfig + hosttree.BackupSuffix) {
			t.Errorf("%s: a file with a runtime of ours is kept as the original", name)
		}
		// The runtime of the installation goes, another one stays, and with it what it starts.
		removal := uninstall(t, h, o)
		stays := name == "other"
		if c := theConfiguration(t, h); c.Runtimes["other"].Ours() != stays || c.Runtimes["nvidia"].Ours() {
			t.Errorf("%s: left %+v", name, c.Runtimes)
		}
		if (len(removal.NeededBy) > 0) != stays || (programs(t, h) > 0) != stays {
			t.Errorf("%s: needed by %v, %d programs", name, removal.NeededBy, programs(t, h))
		}
	}
}

// An installation under another name leaves a runtime that an operator called nvidia.
func TestARuntimeWrittenByHandIsNotTheInstalledOne(t *testing.T) {
	hand := "[plugins.\"" + criV2 + "\".containerd.runtimes.nvidia]\n  runtime_type = \"" + RuntimeType + "\"\n"
	h, o := containerdTree(t, string(fixture(t, "v2-1.7.toml"))+hand, "", v1735), options(t)
	o.Registration.Handler = "gpu"
	applied(t)(Install(h, o))
	o.Registration.Handler = "nvidia" // the default of uninstall
	removal := uninstall(t, h, o)
	if c := theConfiguration(t, h); !c.Runtimes["nvidia"].Ours() || c.Runtimes["gpu"].Ours() || len(removal.NeededBy) != 1 {
		t.Errorf("left %+v, needed by %v", c.Runtimes, removal.NeededBy)
	}
}

// The programs stay while a runtime that an operator wrote for another daemon, or for Docker, starts
// them.
func TestARuntimeWrittenByHandKeepsThePrograms(t *testing.T) {
	const docker = `{"runtimes": {"gpu": {"runtimeType": "` + RuntimeType + `"}}}`
	for name, c := range map[string]struct {
		config, docker string // containerd's file and daemon.json
		target         string
		want           []string
	}{
		"none":                           {"v2-1.7.toml", "{}", Containerd, nil},
		"one of Docker":                  {"v2-1.7.toml", docker, Containerd, []string{DefaultDockerConfig + ": gpu"}},
		"one of Docker, of Docker's own": {"v2-1.7.toml", docker, Docker, []string{DefaultDockerConfig + ": gpu"}},
		"one of containerd": {"version = 2\n[plugins.\"" + criV2 + "\".containerd.runtimes.gpu]\n  runtime_type = \"" + RuntimeType + "\"\n", "{}", Docker,
			[]string{testConfig + ": gpu"}},
	} {
		t.Run(name, func(t *testing.T) {
			h, o := containerdTree(t, c.config, "", v1735), options(t)
			write(t, h.Real(DefaultDockerConfig), c.docker)
			if c.target == Docker {
				h.Daemon, o = semver.Version{Major: 29}, withDocker(o)
			}
			applied(t)(Install(h, o))
			p := uninstall(t, h, o)
			if !slices.Equal(p.NeededBy, c.want) || (programs(t, h) > 0) != (c.want != nil) {
				t.Errorf("needed by %v, %d programs", p.NeededBy, programs(t, h))
			}
			// Without them a second removal finds the programs in the record.
			check(t, errors.Join(os.Remove(h.Real(testConfig)), os.Remove(h.Real(DefaultDockerConfig))))
			if p := uninstall(t, h, o); len(p.NeededBy) > 0 || programs(t, h) > 0 {
				t.Errorf("again: needed by %v, %d programs", p.NeededBy, programs(t, h))
			}
		})
	}
}
