package cdispec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func specOf(kind, device string) string {
	return "{\"cdiVersion\": \"0.6.0\", \"kind\": \"" + kind + "\", \"devices\": [{\"name\": \"" + device + "\", \"containerEdits\": {\"env\": [\"A=b\"]}}]}\n"
}

// What is refused is what the CDI library has no device for.
func TestADeviceThatAnotherFileDefines(t *testing.T) {
	const kind = "nvidia.com/gpu"
	for name, c := range map[string]struct {
		files map[string]string
		other string // the file that the error names; "" for none
	}{
		"alone":                          {},
		"a copy":                         {map[string]string{"etc/copy.yaml": specOf(kind, "0")}, "etc/copy.yaml"},
		"an old one":                     {map[string]string{"etc/nvidia.old.json": specOf(kind, "0")}, "etc/nvidia.old.json"},
		"a hidden one":                   {map[string]string{"etc/.nvidia.yaml": specOf(kind, "0")}, "etc/.nvidia.yaml"},
		"a file with another suffix":     {map[string]string{"etc/nvidia.yaml.bak": specOf(kind, "0")}, ""},
		"another name":                   {map[string]string{"etc/other.yaml": specOf(kind, "1")}, ""},
		"another kind":                   {map[string]string{"etc/other.yaml": specOf("nvidia.com/gds", "0")}, ""},
		"another form":                   {map[string]string{"etc/other.yaml": "devices: 1\n"}, ""},
		"one in the later directory":     {map[string]string{"run/nvidia.yaml": specOf(kind, "0")}, ""},
		"two in the later directory":     {map[string]string{"run/a.json": specOf(kind, "0"), "run/b.yaml": specOf(kind, "0")}, "run/b.yaml"},
		"two of another name, and later": {map[string]string{"run/a.json": specOf(kind, "1"), "run/b.yaml": specOf(kind, "1")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := testtree.NewRoot(t)
			file := root.Write("etc/nvidia.yaml", specOf(kind, "0"))
			for name, text := range c.files {
				root.Write(name, text)
			}
			dirs := []string{filepath.Join(root.Dir, "etc"), filepath.Join(root.Dir, "run")}
			text, err := os.ReadFile(file)
			testtree.Check(t, err)
			err = CheckConflicts(file, text, dirs...)
			if (err != nil) != (c.other != "") || err != nil && !strings.Contains(err.Error(), "remove "+filepath.Join(root.Dir, c.other)) {
				t.Errorf("error %v, want %q", err, c.other)
			}
			cache, created := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(dirs...))
			testtree.Check(t, created)
			if got := cache.GetDevice(kind+"=0") != nil; got != (err == nil) {
				t.Errorf("the CDI library has the device: %v, and the error is %v", got, err)
			}
		})
	}
}
