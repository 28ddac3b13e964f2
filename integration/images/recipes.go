package images

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

var recipes = map[string]recipe{
	"busybox":       {version: 1, packages: []string{"busybox-static", "libc6-dev"}, make: busybox},
	"debian12":      {version: 1, packages: []string{"libc6-dev"}, make: debian12},
	"glibc-nocache": {version: 2, packages: glibcPackages, make: glibcNoCache},
	"glibc-hwcaps":  {version: 2, packages: glibcPackages, make: glibcHwcaps},
	"usrlib64":      {version: 3, packages: glibcPackages, make: usrLib64},
	"musl":          {version: 1, packages: []string{"busybox-static", "libc6-dev", "musl"}, make: muslImage},
	"large":         {version: 2, packages: glibcPackages, make: large},
	"loaders":       {version: 1, packages: glibcPackages, make: loaders},
}

var glibcPackages = []string{"busybox-static", "libc6-dev", "libc6", "libc-bin"}

// defaultPath is the PATH of all images.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func defaultConfig() Config {
	return Config{Env: []string{defaultPath}, Cmd: []string{"/bin/sh"}, WorkingDir: "/"}
}

// LargeLibraries is the number of libraries in the image "large".
const LargeLibraries = 5000

// The user, with uid 1000, that every image has beside root.
const (
	testerPasswd = "tester:x:1000:1000:tester:/:/bin/sh\n"
	testerGroup  = "tester:x:1000:\n"
)

// directories are those that runtimes mount on, and the temporary ones.
func directories() []File {
	return []File{
		Dir("dev", 0o755), Dir("proc", 0o755), Dir("run", 0o755), Dir("sys", 0o755),
		Dir("tmp", 0o1777), Dir("var/tmp", 0o1777),
	}
}

// skeleton is what every image needs that is not made by debootstrap.
func skeleton() []File {
	return append(directories(),
		Dir("etc", 0o755), Dir("root", 0o700),
		Text("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n"+testerPasswd),
		Text("etc/group", 0o644, "root:x:0:\n"+testerGroup))
}

// shell is busybox and its applet links in a directory.
func shell(dir string) ([]File, error) {
	path, err := lookTool("busybox")
	if err != nil {
		return nil, errors.New("busybox is missing: install Debian's busybox-static (integration/tools/apt.sh)")
	}
	list, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("busybox --list: %w", err)
	}
	files := []File{FromHost(dir+"/busybox", 0o755, path)}
	for _, name := range strings.Fields(string(list)) {
		if name != "busybox" && name != "ldconfig" {
			files = append(files, Symlink(dir+"/"+name, "busybox"))
		}
	}
	return files, nil
}

func busybox(b *builder) (Image, error) {
	files := skeleton()
	sh, err := shell("bin")
	if err != nil {
		return Image{}, err
	}
	own, err := b.staticPrograms()
	if err != nil {
		return Image{}, err
	}
	files = append(append(files, sh...), own...)
	return Image{Config: defaultConfig(), Layers: []Layer{{Files: files}}}, nil
}

func muslImage(b *builder) (Image, error) {
	files := skeleton()
	sh, err := shell("bin")
	if err != nil {
		return Image{}, err
	}
	own, err := b.staticPrograms()
	if err != nil {
		return Image{}, err
	}
	dynamic, err := b.programs(musl, "dlopen", "cucount")
	if err != nil {
		return Image{}, err
	}
	files = append(append(append(files, sh...), own...), dynamic...)
	files = append(files,
		// As Alpine has it: the loader is the C library, with a second name.
		FromHost("lib/"+b.arch.muslLoader, 0o755, "/lib/"+b.arch.muslLoader),
		Symlink("lib/libc.musl"+strings.TrimPrefix(b.arch.muslLoader, "ld-musl"), b.arch.muslLoader),
	)
	return Image{Config: defaultConfig(), Layers: []Layer{{Files: files}}}, nil
}

// libcLibraries are the parts of Debian's libc6 that NVIDIA's programs ask for by
// name, also where they are empty since glibc 2.34.
var libcLibraries = []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"}

// glibcBase is a merged-/usr image with busybox, the programs, and the host's
// loader and libc in libDir.
func (b *builder) glibcBase(libDir string) ([]File, error) {
	files := skeleton()
	files = append(files, Dir("usr/bin", 0o755), Dir("usr/sbin", 0o755), Dir("usr/lib", 0o755), Dir("usr/lib64", 0o755),
		Symlink("bin", "usr/bin"), Symlink("sbin", "usr/sbin"), Symlink("lib", "usr/lib"), Symlink("lib64", "usr/lib64"))
	sh, err := shell("usr/bin")
	if err != nil {
		return nil, err
	}
	own, err := b.staticPrograms()
	if err != nil {
		return nil, err
	}
	dynamic, err := b.programs(glibc, "dlopen", "cucount")
	if err != nil {
		return nil, err
	}
	files = append(append(append(files, sh...), own...), dynamic...)
	for _, name := range append([]string{b.arch.loader}, libcLibraries...) {
		host, ok := HostLibrary(name)
		if !ok {
			return nil, fmt.Errorf("this host has no %s", name)
		}
		files = append(files, FromHost(libDir+"/"+name, 0o755, host))
	}
	if link := b.arch.loaderLink; link != libDir+"/"+b.arch.loader {
		files = append(files, Symlink(link, "/"+libDir+"/"+b.arch.loader))
	}
	return files, nil
}

func glibcNoCache(b *builder) (Image, error) {
	files, err := b.glibcBase("usr/lib/" + b.arch.tuple)
	if err != nil {
		return Image{}, err
	}
	return Image{Config: defaultConfig(), Layers: []Layer{{Files: files}}}, nil
}

// withCache puts ldconfig into a tree of files and lets the host's real ldconfig
// make the cache. confs maps names in ld.so.conf.d to directories.
func (b *builder) withCache(files []File, confs map[string]string) (Image, error) {
	ldconfig, err := lookTool("ldconfig.real") // Ubuntu's ldconfig is a script around it
	if err != nil {
		ldconfig, err = lookTool("ldconfig")
	}
	if err != nil {
		return Image{}, errors.New("ldconfig is missing: install Debian's libc-bin (integration/tools/apt.sh)")
	}
	files = append(files, FromHost("usr/sbin/ldconfig", 0o755, ldconfig),
		Text("etc/ld.so.conf", 0o644, "include /etc/ld.so.conf.d/*.conf\n"), Dir("etc/ld.so.conf.d", 0o755))
	for name, dir := range confs {
		files = append(files, Text("etc/ld.so.conf.d/"+name+".conf", 0o644, dir+"\n"))
	}
	root := filepath.Join(b.work, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return Image{}, err
	}
	if err := Populate(root, files); err != nil {
		return Image{}, err
	}
	if out, err := exec.Command(ldconfig, "-r", root).CombinedOutput(); err != nil {
		return Image{}, fmt.Errorf("ldconfig -r: %w\n%s", err, out)
	}
	// ldconfig's own cache holds times and inode numbers of this host.
	return Image{Config: defaultConfig(), Layers: []Layer{{Dir: root, Skip: []string{"var/cache"}}}}, nil
}

// libraries compiles several libraries.
func (b *builder) libraries(list ...library) ([]File, error) {
	var files []File
	for _, l := range list {
		f, err := b.library(l)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// debianConfs is Debian's ld.so.conf.d.
func (b *builder) debianConfs() map[string]string {
	return map[string]string{b.arch.tuple: "/usr/local/lib/" + b.arch.tuple + "\n/lib/" + b.arch.tuple + "\n/usr/lib/" + b.arch.tuple}
}

// HostileValue is what the hostile libcuda.so.1 of glibc-hwcaps gives as its
// driver version. Its libfoo gives 1, or 2, 3 … from the hwcaps subdirectories.
const HostileValue = 666

func glibcHwcaps(b *builder) (Image, error) {
	if len(b.arch.hwcaps) == 0 {
		return Image{}, errors.New("glibc has no hwcaps subdirectories for this architecture")
	}
	dir := "usr/lib/" + b.arch.tuple
	files, err := b.glibcBase(dir)
	if err != nil {
		return Image{}, err
	}
	list := []library{{path: dir + "/libfoo.so.1", soname: "libfoo.so.1", value: 1}}
	for i, level := range b.arch.hwcaps {
		sub := dir + "/glibc-hwcaps/" + level
		list = append(list,
			library{path: sub + "/libfoo.so.1", soname: "libfoo.so.1", value: 2 + i},
			library{path: sub + "/libcuda.so.1", soname: "libcuda.so.1", value: HostileValue, cuda: true})
	}
	libs, err := b.libraries(list...)
	if err != nil {
		return Image{}, err
	}
	return b.withCache(append(files, libs...), b.debianConfs())
}

// usrLib64 is laid out as RHEL. Debian's loader does not look in /usr/lib64 by
// itself, so here the cache is needed, made with both names of that directory
// configured; as on RHEL the entries are below /lib64.
func usrLib64(b *builder) (Image, error) {
	files, err := b.glibcBase("usr/lib64")
	if err != nil {
		return Image{}, err
	}
	libs, err := b.libraries(library{path: "usr/lib64/libfoo.so.1", soname: "libfoo.so.1", value: 1})
	if err != nil {
		return Image{}, err
	}
	files = append(files, Text("etc/redhat-release", 0o644, "a layout like Red Hat's\n"))
	return b.withCache(append(files, libs...), map[string]string{"usrlib64": "/lib64\n/usr/lib64"})
}

// large has LargeLibraries names of one small library. Without a SONAME, ldconfig
// lists each under its file name.
func large(b *builder) (Image, error) {
	dir := "usr/lib/" + b.arch.tuple
	files, err := b.glibcBase(dir)
	if err != nil {
		return Image{}, err
	}
	name := func(i int) string { return fmt.Sprintf("usr/lib/large/libtest%04d.so.1", i) }
	first, err := b.library(library{path: name(0), value: 1})
	if err != nil {
		return Image{}, err
	}
	files = append(files, first)
	for i := 1; i < LargeLibraries; i++ {
		files = append(files, Link(name(i), name(0)))
	}
	confs := b.debianConfs()
	confs["large"] = "/usr/lib/large"
	return b.withCache(files, confs)
}
