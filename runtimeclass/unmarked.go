package runtimeclass

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
)

// This file handles runtimes of this shim without our marks: a program that writes a configuration
// out again, such as `containerd config migrate` or `nvidia-ctk runtime configure`, drops comments.

// adopt prepares a registration beside an unmarked runtime of the same name: that of an
// installation is taken out, to be written again; one that an operator wrote stays as it is, and
// adopt returns its file.
func (p *Plan) adopt(o *Options, files []tomlFile) (file string, err error) {
	handler := o.Registration.Handler
	if !slices.Contains(unmarked(files), handler) {
		return "", nil
	}
	name, present := holder(files, handler)
	options := tomledit.Table(present, "options")
	if binary, _ := options["BinaryName"].(string); present != nil && !p.registered(*o) && (binary == "" || binary == "runc") {
		p.note("the runtime %q of %s starts this shim: it stays as it is", handler, name)
		return name, nil
	}
	if unmarkedDefault(files, []string{handler}) != "" && !o.DropDefault {
		o.Registration.Default = true
	}
	p.note("the runtime %q starts this shim, but the marks of install are gone: it is written again", handler)
	return "", takeOut(files, []string{handler})
}

// takeOut removes runtimes of this shim, and a default in the same file that names one of them, from
// the originals of files. A default in another file was set by another program.
func takeOut(files []tomlFile, names []string) error {
	for i := range files {
		f := &files[i]
		text, ours, found := f.original, oursIn(f.config), false
		for _, section := range sectionNames {
			table := []string{"plugins", section, "containerd"}
			containerd := tomledit.Table(f.config, table...)
			if name, _ := containerd["default_runtime_name"].(string); slices.Contains(names, name) && slices.Contains(ours, name) {
				text = tomledit.Remove(text, table, "default_runtime_name")
				delete(containerd, "default_runtime_name")
				found = true
			}
			runtimes := tomledit.Table(containerd, "runtimes")
			for _, name := range names {
				if slices.Contains(ours, name) && runtimes[name] != nil {
					text = tomledit.RemoveTable(text, append(slices.Clone(table), "runtimes", name))
					delete(runtimes, name)
					found = true
				}
			}
		}
		if !found { // guard: installation: programs kept
			continue
		}
		got, err := tomledit.Decode(text)
		if err == nil && !reflect.DeepEqual(tomledit.WithoutEmpty(got), tomledit.WithoutEmpty(f.config)) {
			err = errors.New("the lines of others would change")
		}
		if err != nil {
			return fmt.Errorf("%s: the runtime of this shim is not in tables of its own there (%w): remove %v and a default that names it by hand, then run this again", f.name, err, names)
		}
		f.original, f.config = text, got
	}
	return nil
}

// unmarkedDefault returns the default that takeOut removes with these names, or "".
func unmarkedDefault(files []tomlFile, names []string) string {
	for _, f := range files {
		for _, section := range sectionNames {
			name, _ := tomledit.Table(f.config, "plugins", section, "containerd")["default_runtime_name"].(string)
			if slices.Contains(names, name) && slices.Contains(oursIn(f.config), name) {
				return name
			}
		}
	}
	return ""
}

// startedFrom returns the runtimes without our marks, of those that is selects, that start the shim
// in a directory: by its path, or by its name if the directory is in the PATH of services.
func startedFrom(files []tomlFile, dir string, is func(name string) bool) (list []string) {
	for _, f := range files {
		for _, name := range slices.DeleteFunc(oursIn(f.config), func(name string) bool { return !is(name) }) {
			file := ""
			for _, section := range sectionNames {
				if r, ok := tomledit.Table(f.config, "plugins", section, "containerd", "runtimes", name)["runtime_path"].(string); ok {
					file = r
				}
			}
			if path.Dir(file) == dir || file == "" && slices.Contains(filepath.SplitList(ServicePath), dir) {
				list = append(list, f.name+": "+name)
			}
		}
	}
	return list
}

// unmarked returns the runtimes of this shim without our marks. The files are without marked lines.
func unmarked(files []tomlFile) (names []string) {
	for _, f := range files {
		names = append(names, oursIn(f.config)...) // guard: installation: runtimes without marks
	}
	return names
}

// marked returns the runtimes with our marks that no other line of the files defines.
func marked(files []tomlFile) []string {
	return slices.DeleteFunc(ownHandlers(textsOf(files)...), func(name string) bool {
		_, present := holder(files, name)
		return present != nil
	})
}
