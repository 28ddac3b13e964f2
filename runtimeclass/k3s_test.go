package runtimeclass

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"text/template"
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

// kind merges the patch of its nodes' version into their configuration.
func TestKind(t *testing.T) {
	text, err := Kind(Registration{Default: true, BinDir: "/opt/shim"}.filled())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, `- hostPath: "/opt/shim/containerd-shim-nvidia-v2"`) || strings.Count(text, "containerPath") != 3 {
		t.Errorf("mounts:\n%s", text)
	}
	applied := 0
	for _, name := range []string{"kind.toml", "k3s-v3.toml"} {
		config, err := decode(fixture(t, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range strings.Split(text, "- |-\n")[1:] {
			patch, err := decode([]byte(p))
			if err != nil {
				t.Fatal(err)
			}
			if patch["version"] != config["version"] {
				continue
			}
			merge(config, patch)
			applied++
		}
		v, err := configVersion(config)
		if err != nil {
			t.Fatal(err)
		}
		c := effective([]*file{{config: config, version: v, cri: table(config, "plugins", criPlugin(v, config, Version{}))}})
		if r := c.Runtimes["nvidia"]; r.Path != "/usr/local/bin/"+ShimName || c.Default != "nvidia" {
			t.Errorf("%s: %+v, default %q", name, r, c.Default)
		}
	}
	if applied != 2 {
		t.Errorf("%d patches applied, want one for each version", applied)
	}
}
