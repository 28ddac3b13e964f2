package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hostinfo"
)

// fileTable reads the table of `info --files`: what is said of each file, by its path.
func fileTable(t *testing.T, out string) map[string]string {
	t.Helper()
	files, dir := map[string]string{}, ""
	for line := range strings.Lines(out) {
		name, text, ok := strings.Cut(strings.TrimSpace(line), "  ")
		switch text = strings.TrimSpace(text); {
		case text == "GIVEN WITH, OR WHY NOT":
			dir = name
		case strings.HasPrefix(line, "searched:"):
			dir = ""
		case dir != "" && ok:
			files[dir+name] = text
		case dir != "":
			t.Errorf("not a row: %q", line)
		}
	}
	return files
}

var (
	// icd has the architecture in its name on some distributions.
	icd   = regexp.MustCompile(`^nvidia_icd\..*json$`)
	isOfX = map[string]bool{"libglxserver_nvidia.so": true, "nvidia-drm-outputclass.conf": true, "nvidia_drv.so": true}
)

// The same driver is given in the same way wherever a distribution puts it, and nothing of it is
// passed over in silence.
func TestWhatIsGivenOnEachLayout(t *testing.T) {
	var debian map[string]string
	for _, layout := range sim.Layouts {
		d := sim.New(t, sim.Options{GPUs: 1, Layout: layout})
		lib := filepath.Join(d.Root, layout.LibDir())
		const spoiled = "libnvidia-opencl.so." + sim.DefaultVersion
		testtree.Check(t, errors.Join(
			os.WriteFile(filepath.Join(lib, "libXNVCtrl.so."+d.Version), []byte("\x7fELF"), 0o644),
			os.WriteFile(filepath.Join(lib, "libcuda.so.575.1.1"), []byte("\x7fELF"), 0o644),
			os.Chmod(filepath.Join(lib, spoiled), 0o757)))
		have := fileTable(t, fine(t, "--config", d.ConfigPath, "info", "--files"))
		var info hostinfo.Info
		decode(t, fine(t, "--config", d.ConfigPath, "--json", "info"), &info)
		want := map[string][]string{}
		for capability, files := range info.Files {
			for _, f := range files {
				want[f] = append(want[f], capability)
			}
		}
		byName := map[string]string{}
		for file, text := range have {
			capabilities := slices.Compact(slices.Sorted(slices.Values(want[file])))
			if given := strings.Join(capabilities, ", "); given != "" && text != given {
				t.Errorf("%s: %s: %q, want %q", layout, file, text, given)
			}
			if len(capabilities) > 0 && !slices.Contains(capabilities, config.Compat32) {
				byName[icd.ReplaceAllString(path.Base(file), "nvidia_icd.json")] = text
			}
			delete(want, file)
		}
		if len(want) > 0 {
			t.Errorf("%s: not in the table: %v", layout, want)
		}
		for name, text := range map[string]string{"libXNVCtrl.so." + d.Version: "left out: ", spoiled: "refused: it is writable by users other than root"} {
			said := false
			for file := range have {
				said = said || path.Base(file) == name && strings.HasPrefix(have[file], text)
			}
			if !said {
				t.Errorf("%s: %s: not %q", layout, name, text)
			}
		}
		if debian == nil {
			debian = byName
		}
		wanted := maps.Clone(debian)
		if layout == sim.GKE { // it has no X server
			maps.DeleteFunc(wanted, func(name, _ string) bool { return isOfX[strings.TrimSuffix(name, "."+d.Version)] })
		}
		if !maps.Equal(byName, wanted) {
			t.Errorf("%s: given otherwise than on %s:\n%v\n%v", layout, sim.Debian, byName, wanted)
		}
	}
}

// The whole table for the driver of Debian's packages (testdata/debian.sh of package driver).
func TestWhatIsGivenOfDebiansPackages(t *testing.T) {
	wide := ldcache.ABI64
	if wide.Arch != "x86_64" {
		t.Skip("NOT TESTED: the lists are those of amd64")
	}
	for _, suite := range []string{"bookworm", "trixie"} {
		r := testtree.NewRoot(t)
		version, _ := r.Unpack("../../gpuinject/host/driver/testdata/debian-"+suite+".txt", wide.Machine)
		d := sim.New(t, sim.Options{GPUs: 1, Version: version})
		text, err := os.ReadFile(d.ConfigPath)
		testtree.Check(t, err)
		testtree.Check(t, os.WriteFile(d.ConfigPath, bytes.ReplaceAll(text, []byte(fmt.Sprintf("driver-root = %q", d.Root)), []byte(fmt.Sprintf("driver-root = %q", r.Dir))), 0o644))
		var have strings.Builder
		files := fileTable(t, fine(t, "--config", d.ConfigPath, "info", "--files"))
		for _, file := range slices.Sorted(maps.Keys(files)) {
			fmt.Fprintf(&have, "%s: %s\n", strings.ReplaceAll(file, r.Dir+"/", ""), files[file])
		}
		want, err := os.ReadFile("testdata/files-debian-" + suite + ".txt")
		testtree.Check(t, err)
		if have.String() != string(want) {
			t.Errorf("%s: the table is\n%s", suite, have.String())
		}
	}
}
