package runtimeclass

import (
	"bytes"
	"cmp"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"text/template"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

const k3sDir = "/var/lib/rancher/k3s/agent/etc/containerd/"

func TestInstallDistribution(t *testing.T) {
	const own = "{{ template \"base\" . }}\n[debug]\n  level = \"debug\""
	for _, c := range []struct {
		name     string
		files    map[string]string
		daemon   semver.Version
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
			"config-v3.toml.tmpl": "{{ template \"base\" . }}\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia']\n"}, daemon: v2010, err: "already exists"},
		{name: "NVIDIA's table in the template is replaced", files: map[string]string{"config.toml": "k3s-v3-nvidia.toml", "config-v3.toml.tmpl": "k3s-v3-nvidia.toml"}, daemon: v2010,
			reg: Registration{Replace: true}, explicit: true, changed: "config-v3.toml.tmpl", handler: "nvidia", systemd: "# nvidia-shim was:   SystemdCgroup = false"},
		{name: "what k3s makes is overridden by a drop-in", files: map[string]string{"config.toml": "k3s-v3-imports-nvidia", "/usr/bin/nvidia-container-runtime": "\n"}, daemon: v229,
			reg: Registration{Replace: true}, explicit: true, changed: "config-v3.toml.d/nvidia-shim.toml", handler: "nvidia", systemd: `BinaryName = "runc"`},
		{name: "what k3s makes is not replaced by a template", files: map[string]string{"config.toml": "k3s-v3-nvidia.toml", "/usr/bin/nvidia-container-runtime": "\n",
			"config-v3.toml.tmpl": own}, daemon: v2010, reg: Registration{Replace: true}, explicit: true, err: "use another --handler"},
		{name: "a table with directives", files: map[string]string{"config-v3.toml.tmpl": "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia']\n{{ template \"base\" . }}\n"},
			reg: Registration{Replace: true}, err: "with directives"},
		{name: "a template cannot set the default", files: map[string]string{"config.toml": "k3s-v3.toml"}, reg: Registration{Default: true}, err: "default-runtime: nvidia"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]string{}
			for name, f := range c.files {
				if f == "k3s-v3-imports-nvidia" {
					nvidia := string(fixture(t, "k3s-v3-nvidia.toml"))
					f = string(fixture(t, "k3s-v3.toml")) + nvidia[strings.Index(nvidia, "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia']"):]
				}
				if !filepath.IsAbs(name) {
					name = k3sDir + name
				}
				files[name] = f
			}
			h := Host{Tree: hosttree.Tree{Root: tree(t, files)}, Daemon: c.daemon}
			o := Options{Target: "k3s", Registration: c.reg.filled(), HandlerNamed: c.explicit}
			before := testtree.Contents(t, h.Root)
			plan, err := register(h, o)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			applied(t)(plan, err)
			after := testtree.Contents(t, h.Root)
			checkKept(t, before, after, k3sDir+c.changed)
			for _, want := range []string{c.systemd, "runtimes." + c.handler + "]", "/usr/local/bin/" + version.Shim} {
				if !strings.Contains(after[k3sDir+c.changed], want) || plan.Handler != c.handler {
					t.Errorf("handler %q, no %q in\n%s", plan.Handler, want, after[k3sDir+c.changed])
				}
			}
			render(t, h)
			// The generated file belongs to k3s.
			delete(before, k3sDir+"config.toml")
			if generated, ok := testtree.Contents(t, h.Root)[k3sDir+"config.toml"]; ok {
				before[k3sDir+"config.toml"] = generated
			}
			checkUndone(t, h, o, before)
		})
	}
}

// A further handler is added to those of earlier installations, and one uninstallation removes all of
// them.
func TestAFurtherHandlerOfADistribution(t *testing.T) {
	for _, name := range []string{"k3s", "rke2"} {
		generated := strings.ReplaceAll(string(fixture(t, "k3s-v3.toml")), "/k3s/", "/"+name+"/")
		for _, daemon := range []semver.Version{v229, v2010} {
			dir := path.Dir(DaemonOf(name).Config)
			h := Host{Tree: hosttree.Tree{Root: tree(t, map[string]string{dir + "/config.toml": generated, rancherDir + "/" + name + "/server/tls/x": "\n"})}, Daemon: daemon}
			before := testtree.Contents(t, h.Root)
			o := options(t)
			o.Target, o.ConfigFile = name, ""
			for _, handler := range []string{"nvidia", "gpu"} {
				o.Registration.Handler = handler
				applied(t)(Install(h, o))
			}
			p, err := Install(h, o)
			check(t, err)
			file := path.Join(dir, map[semver.Version]string{v229: "config-v3.toml.d/nvidia-shim.toml", v2010: templateV3}[daemon])
			text := string(read(t, h.Real(file)))
			if p.Changed() || strings.Count(text, "runtimes.nvidia]") != 1 || strings.Count(text, "runtimes.gpu]") != 1 {
				t.Errorf("%s, containerd %s: changed %v,\n%s", name, daemon, p.Changed(), text)
			}
			list, err := Registered(h, Options{Registration: o.Registration, ShimConfig: o.ShimConfig})
			if err != nil || len(list) != 1 || list[0].Target != name {
				t.Fatalf("%s: registrations %+v, %v", name, list, err)
			}
			uninstall(t, h, list[0])
			if now := testtree.Contents(t, h.Root); !reflect.DeepEqual(now, before) {
				t.Errorf("%s: not as before: %v", name, now)
			}
		}
	}
}

// A drop-in keeps the default. A template cannot keep it, and a note says so.
func TestADistributionKeepsTheDefault(t *testing.T) {
	h := Host{Tree: hosttree.Tree{Root: tree(t, map[string]string{k3sDir + "config.toml": "k3s-v3.toml"})}}
	before := testtree.Contents(t, h.Root)
	o := Options{Target: "k3s"}
	for _, s := range []struct {
		daemon semver.Version
		reg    Registration
		drop   bool
		want   string
	}{
		{v229, Registration{Default: true}, false, "nvidia"},
		{v229, Registration{Handler: "gpu"}, false, "nvidia"},
		{v229, Registration{}, true, "runc"},
		{v229, Registration{Handler: "gpu", Default: true}, false, "gpu"},
		{v2010, Registration{}, false, "runc"},
	} {
		h.Daemon, o.Registration, o.DropDefault = s.daemon, s.reg.filled(), s.drop
		p := applied(t)(register(h, o))
		c, err := ReadConfiguration(h, k3sDir+"config.toml")
		if err != nil || c.Default != s.want {
			t.Errorf("%+v: default %q, %v", s, c.Default, err)
		}
		if notes := strings.Join(p.Notes, "\n"); strings.Contains(notes, "put `default-runtime: gpu` into /etc/rancher/k3s/config.yaml") != (s.daemon == v2010) {
			t.Errorf("%+v: %s", s, notes)
		}
	}
	applied(t)(unregister(h, o))
	if now := testtree.Contents(t, h.Root); !reflect.DeepEqual(now, before) {
		t.Errorf("not as before: %v", now)
	}
}

// render does what k3s does at its next start: the template, with k3s's own base, becomes the
// configuration. The result must be TOML without duplicate tables.
func render(t *testing.T, h Host) {
	t.Helper()
	load := func(name string) string {
		text, err := h.Read(k3sDir + name)
		check(t, err)
		return string(text)
	}
	generated := cmp.Or(load("config.toml"), "version = 3\n")
	for _, name := range []string{templateV3, templateV2} {
		text := load(name)
		if text == "" {
			continue
		}
		tmpl := template.Must(template.New("compiled").Parse(text))
		template.Must(tmpl.New("base").Parse(generated))
		var b bytes.Buffer
		check(t, tmpl.Execute(&b, nil))
		if _, err := tomledit.Decode(b.Bytes()); err != nil {
			t.Errorf("k3s would generate broken TOML: %v\n%s", err, b.Bytes())
		}
		write(t, h.Real(k3sDir+"config.toml"), b.String())
	}
}

// kind mounts the programs and merges the patch whose version is that of the nodes' configuration.
func TestKindCluster(t *testing.T) {
	for _, reg := range []Registration{
		{},
		{Default: true, BinDir: "/opt/shim"},
		{Default: true, BinDir: "/opt/- a: b #1, [c] & *d | é", Handler: "true"},
	} {
		reg = reg.filled()
		text := kindCluster(reg)
		type mount = map[string]any
		var cluster struct {
			Nodes []struct {
				ExtraMounts []mount `yaml:"extraMounts"`
			}
			Patches []string `yaml:"containerdConfigPatches"`
		}
		if err := yaml.Unmarshal([]byte(text), &cluster); err != nil || len(cluster.Nodes) != 1 || len(cluster.Patches) != 2 {
			t.Fatalf("%v\n%s", err, text)
		}
		want := []mount{
			{"hostPath": reg.BinDir + "/" + version.Shim, "containerPath": "/usr/local/bin/" + version.Shim, "readOnly": true},
			{"hostPath": reg.BinDir + "/" + version.Ctl, "containerPath": "/usr/local/bin/" + version.Ctl, "readOnly": true},
			{"hostPath": reg.BinDir + "/" + version.NVML, "containerPath": "/usr/local/bin/" + version.NVML, "readOnly": true},
			{"hostPath": "/dev/null", "containerPath": "/var/run/nvidia-container-devices/all"},
		}
		if !reflect.DeepEqual(cluster.Nodes[0].ExtraMounts, want) {
			t.Errorf("mounts %v, want %v", cluster.Nodes[0].ExtraMounts, want)
		}
		for i, name := range []string{"kind.toml", "k3s-v3.toml"} {
			config, err := tomledit.Decode(fixture(t, name))
			check(t, err)
			patch, err := tomledit.Decode([]byte(cluster.Patches[i]))
			if err != nil || patch["version"] != config["version"] {
				t.Fatalf("%v, version %v for a node with %v", err, patch["version"], config["version"])
			}
			tomledit.Merge(config, patch)
			text, err := toml.Marshal(config)
			check(t, err)
			c := parsed(t, text)
			if r := c.Runtimes[reg.Handler]; r.Path != "/usr/local/bin/"+version.Shim || r.Type != stockType || (c.Default == reg.Handler) != reg.Default || c.Runtimes["runc"].Type == "" {
				t.Errorf("%s: %+v, default %q", name, c.Runtimes, c.Default)
			}
		}
	}
}
