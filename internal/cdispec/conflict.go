package cdispec

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"
	"tags.cncf.io/container-device-interface/specs-go"
)

// Path is the file that container engines read. nvidia-ctk is documented to write the same one: two
// files of one kind in a directory make their devices unusable.
const Path = "/etc/cdi/nvidia.yaml"

// maxSize bounds the file; a node with 16 GPUs of 7 MIG devices each needs about 100 KiB.
const maxSize = 4 << 20

// Dirs are the directories that container engines read, later ones first.
var Dirs = []string{filepath.Dir(Path), "/var/run/cdi"}

// CheckConflicts returns an error if container engines would have no device of a specification: the
// CDI library drops a name that two files of one directory define, whatever other directories have.
// A copy, an .old.json and a hidden file count. text is the specification in the file name, which
// is in the first directory.
func CheckConflicts(name string, text []byte, dirs ...string) error {
	own := devices(text)
	for i, dir := range dirs {
		seen := map[string]string{}
		if i == 0 {
			for _, device := range own {
				seen[device] = name
			}
		}
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			file := filepath.Join(dir, e.Name())
			ext := filepath.Ext(file)
			if e.IsDir() || ext != ".json" && ext != ".yaml" || file == name {
				continue
			}
			for _, device := range devices(read(file)) {
				if !slices.Contains(own, device) {
					continue
				}
				if other := seen[device]; other != "" { // guard: installation: no second CDI file
					return fmt.Errorf("%s and %s both define %s, so container engines have neither: remove %[2]s, or move it out of %[4]s", other, file, device, dir)
				}
				seen[device] = file
			}
		}
	}
	return nil
}

// read returns the text of a file, as far as it can be a specification; nil if it cannot be read,
// which the CDI library ignores too.
func read(name string) []byte {
	st, err := os.Stat(name)
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSize))
	if err != nil {
		return nil
	}
	return text
}

// devices returns the full names of the devices in a specification; none if it has another form.
func devices(text []byte) (names []string) {
	var spec specs.Spec
	if yaml.Unmarshal(text, &spec) != nil {
		return nil
	}
	for _, d := range spec.Devices {
		names = append(names, spec.Kind+"="+d.Name)
	}
	return names
}
