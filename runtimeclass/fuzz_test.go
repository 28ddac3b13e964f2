package runtimeclass

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
)

// FuzzContainerdConfig registers with any configuration of containerd.
func FuzzContainerdConfig(f *testing.F) {
	names, err := filepath.Glob("testdata/*.toml")
	if err != nil || len(names) == 0 {
		f.Fatal(names, err)
	}
	for i, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), i%2 == 0, i%3 == 0)
	}
	f.Add(strings.TrimSuffix(tomledit.Block(tomledit.SwitchedOff+"x\n"), "\n")+"\r\n", false, true)
	f.Add("version = 3\nimports = [\"/etc/containerd/*.toml\", \"../..\", \"[\"]\nplugins = 1\n", false, false)
	f.Add("[plugins.'io.containerd.cri.v1.runtime'.containerd]\nruntimes.nvidia.runtime_type = \"x\"\ndefault_runtime_name = \"\"\"\nnvidia\"\"\"", true, true)
	f.Fuzz(func(t *testing.T, text string, replace, byDefault bool) {
		o := containerdOptions(Registration{Replace: replace, Default: byDefault})
		h := containerdTree(t, "none", "", v242)
		write(t, h.Real(testConfig), text)
		installAndUninstall(t, h, o, func(h Host) {
			c, err := ReadConfiguration(h, o.ConfigFile)
			if err != nil || !c.Runtimes[DefaultHandler].Ours() || byDefault && c.Default != DefaultHandler {
				t.Errorf("it is not registered: %+v %v", c, err)
			}
		})
	})
}

// FuzzDockerConfig registers with any configuration of Docker.
func FuzzDockerConfig(f *testing.F) {
	for _, text := range []string{"", "{}", ourDockerRuntime, `{"a":1e999,"<":"\u2028","runtimes":{"nvidia":{"path":"x"}},"default-runtime":"nvidia"}`, `{"runtimes":[]}`, `{} {}`} {
		f.Add(text, true, true)
	}
	f.Fuzz(func(t *testing.T, text string, replace, byDefault bool) {
		o := dockerOptions(Registration{Replace: replace, Default: byDefault})
		installAndUninstall(t, dockerTree(t, text), o, func(h Host) {
			_, config, err := h.readJSON(o.ConfigFile)
			if err != nil || tomledit.Table(config, "runtimes", DefaultHandler)["runtimeType"] != RuntimeType || byDefault && config["default-runtime"] != DefaultHandler {
				t.Errorf("it is not registered: %+v %v", config, err)
			}
		})
	})
}

// installAndUninstall registers the handler, calls check with the result and removes the handler
// again. It fails the test unless the tree is then as before, and returns early if the registration
// is refused.
func installAndUninstall(t *testing.T, h Host, o Options, check func(Host)) {
	t.Helper()
	p, err := unregister(h, o) // the text itself may have lines of an installation
	if err != nil || p.Apply() != nil {
		return
	}
	before := testtree.Contents(t, h.Root)
	if p, err = register(h, o); err != nil {
		return
	}
	applied(t)(p, nil)
	check(h)
	applied(t)(unregister(h, o))
	if now := testtree.Contents(t, h.Root); !reflect.DeepEqual(now, before) {
		t.Errorf("before\n%q\nnow\n%q", before, now)
	}
}

// FuzzKubelet reads any text as a kubelet's file or command line.
func FuzzKubelet(f *testing.F) {
	for _, text := range []string{"--root-dir=/var/lib/k", "kubelet-arg:\n- \"root-dir=/data/kubelet\"", "# --root-dir=/no", "root-dir /a\x00--root-dir=/b", "--root-dir='/c'"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if dir := rootDir(text, "/default"); !strings.HasPrefix(dir, "/") || strings.ContainsAny(dir, " \t\r\n\"'") || !strings.Contains(text, dir) && dir != "/default" {
			t.Errorf("%q", dir)
		}
	})
}

// FuzzRecord reads any bytes as the record of what was installed. Files that it lists are removed
// only if they hold what was installed.
func FuzzRecord(f *testing.F) {
	const name = "/usr/local/bin/other"
	f.Add(`[{"path":"` + name + `","kind":"program","sha256":"00","for":["containerd ` + testConfig + `"]}]`)
	f.Add(`[{"path":"/etc/../usr/local/bin/other","kind":"file"},{"path":"","for":null},{"path":"/usr","kind":"directory"}]`)
	f.Add(`{}`)
	f.Add(`[null,{"path":1}]`)
	f.Fuzz(func(t *testing.T, text string) {
		o := containerdOptions(Registration{})
		h := containerdTree(t, "none", "", v242)
		write(t, h.Real(RecordPath), text)
		write(t, h.Real(name), "a program of others")
		p, err := Uninstall(h, o)
		if err == nil {
			err = p.Apply()
		}
		if err != nil && strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%q", err)
		}
		if left, err := os.ReadFile(h.Real(name)); err != nil || string(left) != "a program of others" {
			t.Errorf("%q, %v", left, err)
		}
	})
}
