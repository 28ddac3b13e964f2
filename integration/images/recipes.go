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
	"compat":        {version: 1, packages: glibcPackages, make: func(b *builder) { compat(b, compatNote) }},
	"compat-nonote": {version: 1, packages: glibcPackages, make: func(b *builder) { compat(b, "") }},
}

var glibcPackages = []string{"busybox-static", "libc6-dev", "libc6", "libc-bin"}

// defaultPath is the PATH of all images.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// LargeLibraries is the number of libraries in the image "large".
const LargeLibraries = 5000

// The user, with uid 1000, that every image has beside root.
const (
	testerPasswd = "tester:x:1000:1000:tester:/:/bin/sh\n"
	testerGroup  = "tester:x:1000:\n"
)

// base adds what every image has that is not made by debootstrap: busybox as shell, with its applet
// links in a directory, and the programs, some of them for a C library.
func (b *builder) base(dir string, c libc) {
	b.add(
		// Those that runtimes mount on, and the temporary ones.
		Dir("dev", 0o755), Dir("proc", 0o755), Dir("run", 0o755), Dir("sys", 0o755),
		Dir("tmp", 0o1777), Dir("var/tmp", 0o1777), Dir("etc", 0o755), Dir("root", 0o700),
		Text("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n"+testerPasswd),
		Text("etc/group", 0o644, "root:x:0:\n"+testerGroup))
	path, err := lookTool("busybox")
	if err != nil {
		b.check(errors.New("busybox is missing: install Debian's busybox-static (integration/tools/apt.sh)"))
		return
	}
	list, err := exec.Command(path, "--list").Output()
	b.check(err)
	b.add(FromHost(dir+"/busybox", 0o755, path))
	for _, name := range strings.Fields(string(list)) {
		if name != "busybox" && name != "ldconfig" {
			b.add(Symlink(dir+"/"+name, "busybox"))
		}
	}
	b.staticPrograms()
	if c != static {
		b.programs(c, "dlopen", "cucount")
	}
}

func busybox(b *builder) { b.base("bin", static) }

func muslImage(b *builder) {
	b.base("bin", musl)
	b.add(
		// As on Alpine, the loader is the C library under a second name.
		FromHost("lib/"+b.arch.muslLoader, 0o755, "/lib/"+b.arch.muslLoader),
		Symlink("lib/libc.musl"+strings.TrimPrefix(b.arch.muslLoader, "ld-musl"), b.arch.muslLoader))
}

// libcLibraries are the parts of Debian's libc6 that NVIDIA's programs ask for by
// name, also where they are empty since glibc 2.34.
var libcLibraries = []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"}

// glibcBase is a merged-/usr image with busybox, the programs, and the host's
// loader and libc in libDir.
func (b *builder) glibcBase(libDir string) {
	b.add(Dir("usr/bin", 0o755), Dir("usr/sbin", 0o755), Dir("usr/lib", 0o755), Dir("usr/lib64", 0o755),
		Symlink("bin", "usr/bin"), Symlink("sbin", "usr/sbin"), Symlink("lib", "usr/lib"), Symlink("lib64", "usr/lib64"))
	b.base("usr/bin", glibc)
	for _, name := range append([]string{b.arch.loader}, libcLibraries...) {
		host, ok := HostLibrary(name)
		if !ok {
			b.check(fmt.Errorf("this host has no %s", name))
		}
		b.add(FromHost(libDir+"/"+name, 0o755, host))
	}
	if link := b.arch.loaderLink; link != libDir+"/"+b.arch.loader {
		b.add(Symlink(link, "/"+libDir+"/"+b.arch.loader))
	}
}

func glibcNoCache(b *builder) { b.glibcBase("usr/lib/" + b.arch.tuple) }

// withCache puts ldconfig into the image and lets the host's real ldconfig make the cache. confs
// maps names in ld.so.conf.d to directories.
func (b *builder) withCache(confs map[string]string) {
	b.add(Text("etc/ld.so.conf", 0o644, "include /etc/ld.so.conf.d/*.conf\n"), Dir("etc/ld.so.conf.d", 0o755))
	for name, dir := range confs {
		b.add(Text("etc/ld.so.conf.d/"+name+".conf", 0o644, dir+"\n"))
	}
	if b.err != nil {
		return
	}
	layer, err := WithCache(filepath.Join(b.work, "root"), b.files)
	b.check(err)
	b.layers, b.files = []Layer{layer}, nil
}

// WithCache is a layer of these files and the host's ldconfig, with the cache that this makes of
// them. root is a directory to make, which has to last until the image is written.
func WithCache(root string, files []File) (Layer, error) {
	ldconfig, err := lookTool("ldconfig.real") // Ubuntu's ldconfig is a script around it
	if err != nil {
		ldconfig, err = lookTool("ldconfig")
	}
	if err != nil {
		return Layer{}, errors.New("ldconfig is missing: install Debian's libc-bin (integration/tools/apt.sh)")
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		return Layer{}, err
	}
	if err := Populate(root, append(files, FromHost("usr/sbin/ldconfig", 0o755, ldconfig))); err != nil {
		return Layer{}, err
	}
	if out, err := exec.Command(ldconfig, "-r", root).CombinedOutput(); err != nil {
		return Layer{}, fmt.Errorf("ldconfig -r: %w\n%s", err, out)
	}
	// ldconfig's own cache holds times and inode numbers of this host.
	return Layer{Dir: root, Skip: []string{"var/cache"}}, nil
}

// debianConfs is Debian's ld.so.conf.d.
func (b *builder) debianConfs() map[string]string {
	return map[string]string{b.arch.tuple: "/usr/local/lib/" + b.arch.tuple + "\n/lib/" + b.arch.tuple + "\n/usr/lib/" + b.arch.tuple}
}

// HostileValue is what the hostile libcuda.so.1 of glibc-hwcaps gives as its
// driver version. Its libfoo gives 1, or 2, 3 … from the hwcaps subdirectories.
const HostileValue = 666

func glibcHwcaps(b *builder) {
	if len(b.arch.hwcaps) == 0 {
		b.check(errors.New("glibc has no hwcaps subdirectories for this architecture"))
	}
	dir := "usr/lib/" + b.arch.tuple
	b.glibcBase(dir)
	list := []library{{path: dir + "/libfoo.so.1", soname: "libfoo.so.1", value: 1}}
	for i, level := range b.arch.hwcaps {
		sub := dir + "/glibc-hwcaps/" + level
		list = append(list,
			library{path: sub + "/libfoo.so.1", soname: "libfoo.so.1", value: 2 + i},
			library{path: sub + "/libcuda.so.1", soname: "libcuda.so.1", value: HostileValue, cuda: true})
	}
	b.libraries(list...)
	b.withCache(b.debianConfs())
}

// usrLib64 is laid out as RHEL. Debian's loader does not search /usr/lib64 by default, so the cache
// is needed here. It is made with both names of that directory configured; as on RHEL, the entries
// are below /lib64.
func usrLib64(b *builder) {
	b.glibcBase("usr/lib64")
	b.libraries(library{path: "usr/lib64/libfoo.so.1", soname: "libfoo.so.1", value: 1})
	b.add(Text("etc/redhat-release", 0o644, "a layout like Red Hat's\n"))
	b.withCache(map[string]string{"usrlib64": "/lib64\n/usr/lib64"})
}

// large has LargeLibraries names of one small library. Without a SONAME, ldconfig
// lists each under its file name.
func large(b *builder) {
	b.glibcBase("usr/lib/" + b.arch.tuple)
	name := func(i int) string { return fmt.Sprintf("usr/lib/large/libtest%04d.so.1", i) }
	b.libraries(library{path: name(0), value: 1})
	for i := 1; i < LargeLibraries; i++ {
		b.add(Link(name(i), name(0)))
	}
	confs := b.debianConfs()
	confs["large"] = "/usr/lib/large"
	b.withCache(confs)
}

// compatNote is the ELF note .note.cuda.fwd_compatibility of the image compat: the CUDA version and
// the major versions of the drivers that the library serves.
const compatNote = `{"Format":1,"CUDA Version":"13.5","Driver":[570,580],"Device":[]}`

// compat has a CUDA forward compatibility library, as the CUDA images have it.
func compat(b *builder, note string) {
	b.glibcBase("usr/lib/" + b.arch.tuple)
	const dir, version = "usr/local/cuda-13.5/compat", "610.43.02"
	b.libraries(
		library{path: dir + "/libcuda.so." + version, soname: "libcuda.so.1", value: 13050, cuda: true, note: note},
		library{path: dir + "/libnvidia-ptxjitcompiler.so." + version, soname: "libnvidia-ptxjitcompiler.so.1", value: 13050})
	b.add(
		Symlink(dir+"/libcuda.so.1", "libcuda.so."+version),
		Symlink(dir+"/libcuda.so", "libcuda.so.1"),
		Symlink(dir+"/libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so."+version),
		Symlink("usr/local/cuda", "/usr/local/cuda-13.5"))
	b.withCache(b.debianConfs())
}
