package driver

import (
	"cmp"
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// maxManifest bounds a manifest, in bytes; NVIDIA's have a few hundred.
const maxManifest = 64 << 10

// binaries looks beside the libraries first, so that nvidia-smi matches them.
func (s *Search) binaries() {
	var dirs []string
	for _, prefix := range s.prefixes() {
		dirs = append(dirs, path.Join(prefix, "bin"))
	}
	dirs = append(dirs, binaryDirs...)
	for _, b := range binaryKinds {
		if !s.Program(b, dirs) && slices.Contains(expectedPrograms, b.Name) {
			s.files.Missing = append(s.files.Missing, b.Capabilities[0]+": "+b.Name)
		}
	}
}

func (s *Search) data() {
	dirs := slices.Clone(dataDirs)
	for _, prefix := range s.prefixes() {
		// Container-Optimized OS has vulkan/icd.d directly below the prefix.
		dirs = append(dirs, path.Join(prefix, "share"), prefix)
	}
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { return !s.Exists(dir) })
	for _, k := range dataKinds {
		f, ok := s.document(k, dirs)
		if !ok {
			keep := f.Dest
			f, ok = s.generate(k)
			f.Dest = keep
		}
		if ok {
			name := cmp.Or(f.Dest, k.names[0])
			f.Dest, f.Capabilities, f.Copies = path.Join(k.dest, k.dir, name), k.capabilities, k.copies(name)
			s.files.Data = append(s.files.Data, f)
		}
	}
}

// copies returns the other places where an image may have the file that goes to its directory by
// this name.
func (k dataKind) copies(given string) []string {
	if len(k.also) == 0 {
		return nil
	}
	names := k.names
	if !slices.Contains(names, given) {
		names = append([]string{given}, names...)
	}
	dest := path.Join(k.dest, k.dir)
	var list []string
	for _, dir := range append([]string{dest}, k.also...) {
		for _, name := range names {
			if at := path.Join(dir, name); at != path.Join(dest, given) {
				list = append(list, at)
			}
		}
	}
	return list
}

// order matches the number of a file that is read in the order of names.
var order = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9]+[-_]`) })

// namesIn returns the names in a directory that the file may have, the best first.
func (s *Search) namesIn(dir string, k dataKind) []string {
	if !k.ordered {
		return k.names
	}
	stem := order().ReplaceAllString(k.names[0], "")
	var others []string
	for _, name := range s.Names(dir) {
		if name != k.names[0] && order().ReplaceAllString(name, "") == stem {
			others = append(others, name)
		}
	}
	return append(slices.Clone(k.names), others...)
}

// hostOnly matches a manifest that only this host can use: it names a library by its path, where
// the container's loader would not find it (NixOS, Fedora), or is for one of two ABIs (Fedora).
const hostOnly = `^\s*/|"library_path"\s*:\s*"[^"]*/|"library_arch"`

// document finds a data file of the host that containers can use. Dest of the result is the host's
// name if that is to be kept, even if the file cannot be used.
func (s *Search) document(k dataKind, dirs []string) (File, bool) {
	manifest := slices.Contains([]string{".json", ".icd"}, path.Ext(k.names[0]))
	bound := regexp.MustCompile(hostOnly)
	keep := ""
	for _, dir := range dirs {
		dir = path.Join(dir, k.dir)
		for _, name := range s.namesIn(dir, k) {
			file, ok := s.first([]string{dir}, name)
			if !ok {
				continue
			}
			if k.ordered {
				keep = name
			}
			if !manifest {
				return File{Path: file, Dest: keep}, true
			}
			text, ok := s.Read(path.Join(dir, name), maxManifest)
			if ok && !bound.Match(text) {
				return File{Path: file, Dest: keep}, true
			}
			if ok && k.content == nil {
				s.Refuse(path.Join(dir, name), "names a library by its place on this host")
			}
		}
	}
	return File{Dest: keep}, false
}

// generate makes a file that the host lacks although it has the library: server drivers and driver
// containers come without it.
func (s *Search) generate(k dataKind) (File, bool) {
	if k.content == nil {
		return File{}, false
	}
	for _, l := range s.files.Libraries {
		if stem, _, _ := SplitName(l.Name); stem == k.library && l.Bits == 64 && l.Subdir == "" {
			return File{Data: []byte(k.content(cmp.Or(l.SOName, l.Name), s.files.Version)), Needs: k.needs}, true
		}
	}
	return File{}, false
}

// fileList is the driver's own list of its files for containers, since 570.86.
const fileList = "/usr/share/nvidia/files.d/sandboxutils-filelist.json"

// compareFileList records the libraries in fileList that this host has beside the others and that
// were not taken. A list in another form is ignored.
func (s *Search) compareFileList() {
	data, ok := s.Read(fileList, 1<<20)
	if !ok {
		return
	}
	var list []struct{ Name, Type string }
	if json.Unmarshal(data, &list) != nil {
		return
	}
	for _, e := range list {
		name := path.Base(e.Name)
		stem, _, ok := SplitName(name)
		is := func(l Library) bool { return l.Name == name || slices.Contains(l.Links, name) }
		if !ok || e.Type != "LIB" || isNeverGiven(stem) || slices.ContainsFunc(s.files.Libraries, is) {
			continue
		}
		for dir := range s.used {
			if slices.Contains(s.Names(dir), name) {
				s.leaveOut(path.Join(dir, name), "it is in the driver's list of files for containers, and unknown here")
			}
		}
	}
	slices.SortFunc(s.files.LeftOut, func(a, b Refused) int { return strings.Compare(a.Path, b.Path) })
}

// xorg finds the modules of the X server, which asks for them without a version. A versioned name
// would leave an empty file for each version in a snapshot that outlives driver upgrades.
func (s *Search) xorg() {
	dirs := append(slices.Clone(xorgDirs), s.belowUsed("nvidia/xorg", "xorg/modules/drivers", "xorg/modules/extensions")...)
	for _, m := range [][2]string{
		{"drivers/nvidia_drv.so", "nvidia_drv.so"},
		{"extensions/libglxserver_nvidia.so", "libglxserver_nvidia.so." + s.files.Version},
	} {
		if file, ok := s.first(dirs, m[1]); ok {
			s.files.Data = append(s.files.Data, File{Path: file, Dest: m[0], Capabilities: graphics})
		}
	}
}

// wine finds NGX for Windows programs. Wine's NVAPI looks for it in nvidia/wine beside the
// libGLX_nvidia that is loaded.
func (s *Search) wine() {
	for _, name := range []string{"nvngx.dll", "_nvngx.dll", "nvngx_dlssg.dll"} {
		if file, ok := s.first(s.belowUsed(wineDir), name); ok {
			s.files.Libraries = append(s.files.Libraries, Library{Path: file, Name: name, Capabilities: ngx, Bits: 64, Subdir: wineDir})
		}
	}
}

const wineDir = "nvidia/wine"

// belowUsed returns these subdirectories of the directories in which a library was found.
func (s *Search) belowUsed(subdirs ...string) []string {
	var dirs []string
	for dir := range s.used {
		for _, sub := range subdirs {
			dirs = append(dirs, path.Join(dir, sub))
		}
	}
	slices.Sort(dirs)
	return dirs
}
