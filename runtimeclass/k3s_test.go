package runtimeclass

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"text/template"

	"github.com/pelletier/go-toml/v2"
)

const k3sDir = "/var/lib/rancher/k3s/agent/etc/containerd/"

func TestInstallDistribution(t *testing.T) {
	const own = "{{ template \"base\" . }}\n[debug]\n  level = \"debug\""
	for _, c := range []struct {
		name     string
		files    map[string]string
		daemon   Version
		reg      Registration
		explicit bool
		changed  string
		handler  string
		systemd  string
		err      string
	}{
		{name: "the drop-in directory is imported", files: map[string]string{"config.toml": "k3s-v3.toml"}, daemon: v229,
			changed: "config-v3.toml.d/nvidia-shim.toml", handler: "nvidia", systemd: "SystemdCgroup = true"},
		{name: "a drop-in can set the default", files: map[string]string{"config.toml": "k3s-v3.toml"}, daemon: v229, reg: Registration{Default: true},
			changed: "config-v3.toml.d/nvidia-shim.toml", handler: "nvidia", systemd: `default_runtime_name = "nvidia"`},
		{name: "containerd 2.0 does not merge it", files: map[string]string{"config.toml": "k3s-v3.toml"}, daemon: v2010,
			changed: "config-v3.toml.tmpl", handler: "nvidia", systemd: "SystemdCgroup = true"},
		{name: "a template of the operator's is extended", files: map[string]string{"config.toml": "k3s-v3.toml", "config-v3.toml.tmpl": own}, daemon: v2010,
			changed: "config-v3.toml.tmpl", handler: "nvidia", systemd: "SystemdCgroup = true"},
		{name: "the generation of containerd 1.7", files: map[string]string{"config.toml": "k3s-v2.toml"}, daemon: v1735,
			changed: "config.toml.tmpl", handler: "nvidia", systemd: `"io.containerd.grpc.v1.cri"`},
		{name: "not started yet", files: map[string]string{"empty": "\n"},
			changed: "config-v3.toml.tmpl", handler: "nvidia", systemd: criV3},
		{name: "NVIDIA's own runtime has the name", files: map[string]string{"config.toml": "k3s-v3-nvidia.toml"}, daemon: v229,
			changed: "config-v3.toml.tmpl", handler: "nvidia-shim", systemd: "SystemdCgroup = false"},
		{name: "NVIDIA's own runtime will have the name", files: map[string]string{"config.toml": "k3s-v3.toml", "/usr/bin/nvidia-container-runtime": "\n"}, daemon: v229,
			changed: "config-v3.toml.d/nvidia-shim.toml", handler: "nvidia-shim", systemd: "SystemdCgroup = true"},
		{name: "an operator who insists is told", files: map[string]string{"config.toml": "k3s-v3-nvidia.toml"}, explicit: true, err: "nvidia-container-runtime"},
		{name: "a template with such a table", files: map[string]string{"config.toml": "k3s-v3.toml",
			"config-v3.toml.tmpl": "{{ template \"base\" . }}\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia']\n"}, daemon: v2010, err: "has a table"},
		{name: "a template cannot set the default", files: map[string]string{"config.toml": "k3s-v3.toml"}, reg: Registration{Default: true}, err: "default-runtime: nvidia"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]string{}
			for name, f := range c.files {
				if !filepath.IsAbs(name) {
					name = k3sDir + name
				}
				files[name] = f
			}
			h := Host{Root: prepare(t, files), Daemon: c.daemon}
			before := contents(t, h.Root)
			install := func() *Plan {
				plan, handler, err := InstallDistribution(h, Distributions["k3s"], c.reg.filled(), c.explicit)
				if c.err != "" {
					if err == nil || !strings.Contains(err.Error(), c.err) {
						t.Errorf("error %v, want %q", err, c.err)
					}
					return nil
				}
				if err != nil {
					t.Fatal(err)
				}
				if handler != c.handler {
					t.Errorf("handler %q, want %q", handler, c.handler)
				}
				if err := plan.Apply(); err != nil {
					t.Fatal(err)
				}
				return plan
			}
			if install() == nil {
				return
			}
			after := contents(t, h.Root)
			checkKept(t, before, after, []string{k3sDir + c.changed})
			for _, want := range []string{c.systemd, "runtimes." + c.handler + "]", "/usr/local/bin/" + ShimName} {
				if !strings.Contains(after[k3sDir+c.changed], want) {
					t.Errorf("no %q in\n%s", want, after[k3sDir+c.changed])
				}
			}
			render(t, h)
			if plan := install(); plan.Changed() {
				t.Errorf("a second installation changes:\n%s", plan.Diff())
			}
			plan, err := UninstallDistribution(h, Distributions["k3s"])
			if err != nil {
				t.Fatal(err)
			}
			if err := plan.Apply(); err != nil {
				t.Fatal(err)
			}
			now := contents(t, h.Root)
			// What k3s generated is its own.
			delete(now, k3sDir+"config.toml")
			delete(before, k3sDir+"config.toml")
			if !reflect.DeepEqual(now, before) {
				t.Errorf("not as before: %v, want %v", now, before)
			}
		})
	}
}

// render does what k3s does at its next start: the template, with the base of its own,
// becomes the configuration. That must be TOML without a table that is there twice.
func render(t *testing.T, h Host) {
	t.Helper()
	generated, err := h.read(k3sDir + "config.toml")
	if err != nil {
		t.Fatal(err)
	}
	if generated == nil {
		generated = []byte("version = 3\n")
	}
	for _, name := range []string{"config-v3.toml.tmpl", "config.toml.tmpl"} {
		text, err := h.read(k3sDir + name)
		if err != nil {
			t.Fatal(err)
		}
		if text == nil {
			continue
		}
		tmpl := template.Must(template.New("compiled").Parse(string(text)))
		template.Must(tmpl.New("base").Parse(string(generated)))
		var b bytes.Buffer
		if err := tmpl.Execute(&b, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := decode(b.Bytes()); err != nil {
			t.Errorf("k3s would generate broken TOML: %v\n%s", err, b.Bytes())
		}
		if err := os.WriteFile(filepath.Join(h.Root, k3sDir, "config.toml"), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInstallDistributionWithoutIt(t *testing.T) {
	_, _, err := InstallDistribution(Host{Root: t.TempDir()}, Distributions["rke2"], Registration{}.filled(), false)
	if !errors.Is(err, errNoTarget) {
		t.Errorf("error %v", err)
	}
}

// kindFiles are a cluster's file and what is in it, for a plain and for a hard case.
func kindFiles(t *testing.T) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	for _, r := range []Registration{
		{},
		{Default: true, BinDir: "/opt/shim"},
		{Default: true, BinDir: "/opt/- a: b #1, [c] & *d | é", Handler: "true"},
	} {
		text, err := Kind(r.filled())
		if err != nil {
			t.Fatal(err)
		}
		doc, err := parseYAML(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		m, ok := doc.(map[string]any)
		if !ok {
			t.Fatalf("no mapping:\n%s", text)
		}
		out[r.filled().BinDir] = m
	}
	return out
}

func TestKindIsAClusterFile(t *testing.T) {
	for dir, doc := range kindFiles(t) {
		mount := func(from, to string) map[string]any {
			return map[string]any{"hostPath": from, "containerPath": to, "readOnly": "true"}
		}
		all := mount("/dev/null", "/var/run/nvidia-container-devices/all")
		delete(all, "readOnly")
		patches, _ := doc["containerdConfigPatches"].([]any)
		if len(patches) != 2 {
			t.Fatalf("patches %v", doc["containerdConfigPatches"])
		}
		want := map[string]any{
			"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "containerdConfigPatches": patches,
			"nodes": []any{map[string]any{"role": "control-plane", "extraMounts": []any{
				mount(dir+"/"+ShimName, "/usr/local/bin/"+ShimName), mount(dir+"/"+CtlName, "/usr/local/bin/"+CtlName), all,
			}}},
		}
		if !reflect.DeepEqual(doc, want) {
			t.Errorf("%s: got %v\nwant %v", dir, doc, want)
		}
	}
}

// patched merges the patches of a cluster's file into a node's configuration as kind
// does: those of another version are left out.
func patched(t *testing.T, doc map[string]any, node []byte) (config map[string]any, applied int) {
	t.Helper()
	config, err := decode(node)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range doc["containerdConfigPatches"].([]any) {
		patch, err := decode([]byte(p.(string)))
		if err != nil {
			t.Fatal(err)
		}
		if patch["version"] == config["version"] {
			merge(config, patch)
			applied++
		}
	}
	return config, applied
}

// kind merges the patch of its nodes' version into their configuration.
func TestKindPatchesNodesOfBothVersions(t *testing.T) {
	for dir, doc := range kindFiles(t) {
		for _, name := range []string{"kind.toml", "k3s-v3.toml"} {
			config, applied := patched(t, doc, fixture(t, name))
			if applied != 1 {
				t.Errorf("%s: %d patches applied, want one for each version", name, applied)
			}
			v, err := configVersion(config)
			if err != nil {
				t.Fatal(err)
			}
			c := effective([]*file{{config: config, version: v, cri: table(config, "plugins", criPlugin(v, config, Version{}))}})
			checkKindRuntimes(t, dir, name, c)
		}
	}
}

// checkKindRuntimes looks for what kindFiles asked for.
func checkKindRuntimes(t *testing.T, dir, label string, c *Configuration) {
	t.Helper()
	handler, theDefault := "nvidia", "nvidia"
	switch {
	case dir == DefaultBinDir:
		theDefault = "runc"
	case dir != "/opt/shim":
		handler, theDefault = "true", "true"
	}
	if r := c.Runtimes[handler]; r.Path != "/usr/local/bin/"+ShimName || r.Type != stockType || c.Default != theDefault {
		t.Errorf("%s, programs in %q: %+v, default %q", label, dir, r, c.Default)
	}
	if _, ok := c.Runtimes["runc"]; !ok {
		t.Errorf("%s: runc is lost: %v", label, c.Runtimes)
	}
}

// containerd's own reading of what kind makes of the patches.
func TestContainerdReadsKindsNodes(t *testing.T) {
	all := programs(t)
	if len(all) == 0 {
		if testing.Short() {
			t.Skip("SKIP (-short): no bin/tools/containerd: run `make tools`")
		}
		t.Fatal("no bin/tools/containerd: run `make tools`")
	}
	v3 := []byte(`version = 3
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "/etc/containerd/cri-base.json"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    SystemdCgroup = true
`)
	for label, program := range all {
		out, err := exec.Command(program, "--version").Output()
		if err != nil {
			t.Fatal(err)
		}
		version, err := ParseVersion(string(out))
		if err != nil {
			t.Fatal(err)
		}
		for dir, doc := range kindFiles(t) {
			for name, node := range map[string][]byte{"version 2": fixture(t, "kind.toml"), "version 3": v3} {
				if name == "version 3" && !version.AtLeast(2, 0, 0) {
					continue
				}
				config, _ := patched(t, doc, node)
				text, err := toml.Marshal(config)
				if err != nil {
					t.Fatal(err)
				}
				p := filepath.Join(t.TempDir(), "config.toml")
				if err := os.WriteFile(p, text, 0o600); err != nil {
					t.Fatal(err)
				}
				dump, err := exec.Command(program, "--config", p, "config", "dump").Output()
				if err != nil {
					t.Fatalf("%s: config dump: %v\n%s", label, err, text)
				}
				c, err := ParseConfiguration(dump)
				if err != nil {
					t.Fatal(err)
				}
				checkKindRuntimes(t, dir, label+", "+name, c)
			}
		}
	}
}
