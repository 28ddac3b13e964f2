package node

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/install"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// What becomes of the file of the shim's configuration. "-" is a file that is left alone.
func TestTheConfigurationFollowsTheCommandLine(t *testing.T) {
	const audit, off = "[policy]\nkubernetes = 'audit'\n", "[policy]\ndisable-require = true\n"
	made, packaged := string(runtimeclass.Marked(off)), "# driver-root = \"/\"\n[host]\n"
	followed := string(runtimeclass.Marked(fromNode + audit))
	for name, tc := range map[string]struct {
		settings, toolkit, file, want string
	}{
		"nothing":                  {want: "-"},
		"settings":                 {settings: audit, want: fromNode + audit},
		"over the package's file":  {settings: audit, file: packaged, want: fromNode + audit},
		"over that of install":     {settings: audit, file: made, want: fromNode + audit},
		"over its own":             {settings: off, file: followed, want: fromNode + off},
		"over the operator's":      {settings: audit, file: off, want: fromNode + audit}, // which install refuses
		"none, the package's file": {file: packaged, want: "-"},
		"none, that of install":    {file: made, want: "-"},
		"none, the operator's":     {file: off, want: "-"},
		"none any more":            {file: followed, want: ""},
		"the toolkit's":            {toolkit: "disable-require = true\n[nvidia-container-runtime]\nmode = \"legacy\"\n", want: fromNode + off},
		"settings over the toolkit's": {settings: "[policy]\ndisable-require = false\nkubernetes = 'audit'", toolkit: "disable-require = true\n[nvidia-container-runtime]\nmode = \"legacy\"\n",
			want: fromNode + "[policy]\ndisable-require = false\nkubernetes = 'audit'\n"},
		"the toolkit is gone": {toolkit: "-", file: made, want: fromNode + off},
	} {
		root := t.TempDir()
		write := func(name, text string) {
			t.Helper()
			testtree.Check(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
			testtree.Check(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
		}
		if tc.file != "" {
			write(config.DefaultPath, tc.file)
		}
		if tc.toolkit != "" && tc.toolkit != "-" {
			write(toolkit.Paths[1], tc.toolkit)
		}
		in := install.Installer{Host: runtimeclass.Host{Tree: hosttree.Tree{Root: root}}, Out: io.Discard}
		in.ShimConfig = config.DefaultPath
		k := Keeper{Settings: tc.settings, FromToolkit: tc.toolkit != ""}
		testtree.Check(t, k.configure(&in))
		got := in.ShimSettings
		if !in.WriteShimConfig {
			got = "-"
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestSettingsAreTheShimsConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"[policy]\nkubernetes = \"audit\"":  "",
		"[policy]\nkubernets = \"audit\"":   `line 2: unknown key "policy.kubernets"`,
		"[policy]\nkubernetes = \"always\"": `key "policy.kubernetes": "always" is not`,
		"[policy":                           "line 1: ",
	} {
		err := CheckSettings(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Only root can have put a driver container there.
func TestOnlyADriverOfRootIsFound(t *testing.T) {
	d := testtree.NewHost(t, 1)
	c, err := config.Load(d.Config)
	testtree.Check(t, err)
	h, parent := c.Host, filepath.Dir(d.Dir)
	link, empty := filepath.Join(parent, "link"), filepath.Join(parent, "empty")
	testtree.Check(t, errors.Join(os.Symlink(d.Dir, link), os.Mkdir(empty, 0o755)))
	for root, want := range map[string]bool{d.Dir: true, link: false, empty: false, filepath.Join(parent, "none"): false, d.Config: false} {
		if got := hasDriver(h, root); got != want {
			t.Errorf("%s: %v", root, got)
		}
	}
	for name, mode := range map[string]os.FileMode{parent: 0o757, d.Dir: 0o777} {
		before, err := os.Stat(name)
		testtree.Check(t, errors.Join(err, os.Chmod(name, mode)))
		if hasDriver(h, d.Dir) {
			t.Errorf("others can write %s", name)
		}
		testtree.Check(t, os.Chmod(name, before.Mode()))
	}
}
