package images

import (
	"debug/elf"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// hostLibDir is Debian's library directory of this machine.
var hostLibDir = map[string]string{"amd64": "/usr/lib/x86_64-linux-gnu", "arm64": "/usr/lib/aarch64-linux-gnu"}[runtime.GOARCH]

// FromHostPrograms is an image of this host's own programs (by name, looked up in
// PATH and the sbin directories), the libraries that they need, and its dynamic
// loader and ldconfig: real parts for a host that can fetch nothing. Programs that
// are absent are left out. files are added; what is an ELF program among them gets
// its libraries too.
func FromHostPrograms(ref string, programs []string, files ...File) (Image, error) {
	all := append([]File{
		Dir("dev", 0o755), Dir("proc", 0o755), Dir("sys", 0o755), Dir("tmp", 0o1777), Dir("etc", 0o755),
		Dir("usr/bin", 0o755), Dir("usr/sbin", 0o755), Dir("usr/lib64", 0o755), Dir("usr/local/bin", 0o755),
		Symlink("bin", "usr/bin"), Symlink("sbin", "usr/sbin"), Symlink("lib", "usr/lib"), Symlink("lib64", "usr/lib64"),
		Text("etc/passwd", 0o644, "root:x:0:0::/:/bin/sh\n"+testerPasswd),
		Text("etc/ld.so.conf", 0o644, hostLibDir+"\n"),
	}, files...)
	libs, err := hostLibraries()
	if err != nil {
		return Image{}, err
	}
	var queue []string
	for _, f := range files {
		if f.Host != "" {
			queue = append(queue, f.Host)
		}
	}
	// ldconfig.real is what ldconfig calls on Ubuntu.
	for _, name := range append(slices.Clone(programs), "ldconfig", "ldconfig.real") {
		found, err := lookTool(name)
		if err == nil {
			found, err = filepath.EvalSymlinks(found)
		}
		if err != nil {
			continue
		}
		dir := "usr/bin/"
		if strings.HasPrefix(name, "ldconfig") {
			dir = "usr/sbin/"
		}
		all = append(all, FromHost(dir+name, 0o755, found))
		queue = append(queue, found)
	}
	// The driver's libraries want all of the C library.
	want := []string{"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"}
	have := map[string]bool{}
	for len(queue) > 0 {
		if f, err := elf.Open(queue[0]); err == nil {
			needed, _ := f.ImportedLibraries()
			f.Close()
			want = append(want, needed...)
		}
		queue = queue[1:]
		for _, name := range want {
			if have[name] || libs[name] == "" {
				continue
			}
			have[name] = true
			all = append(all, FromHost(placeOf(name), 0o755, libs[name]))
			queue = append(queue, libs[name])
		}
	}
	return Image{Name: ref, Config: Config{Env: []string{defaultPath}, Cmd: []string{"/bin/sh"}}, Layers: []Layer{{Files: all}}}, nil
}

// placeOf returns where an image has a library of the host or its loader.
func placeOf(name string) string {
	switch {
	case strings.HasPrefix(name, "ld-linux-x86"):
		return "usr/lib64/" + name
	case strings.HasPrefix(name, "ld-linux"):
		return "usr/lib/" + name
	}
	return LibraryPath(name)
}

// hostABI is how ldconfig marks libraries of this machine's 64-bit ABI.
var hostABI = map[string]string{"amd64": "libc6,x86-64", "arm64": "libc6,AArch64"}[runtime.GOARCH]

// hostLibraries maps SONAMEs to real files by this host's ld.so.cache, without
// those of an NVIDIA driver.
func hostLibraries() (map[string]string, error) {
	ldconfig, err := lookTool("ldconfig")
	if err != nil {
		return nil, errors.New("ldconfig is missing: install Debian's libc-bin (integration/tools/apt.sh)")
	}
	out, err := exec.Command(ldconfig, "-p").Output()
	if err != nil {
		return nil, fmt.Errorf("the host's libraries: %w", err)
	}
	libs := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) \(`+hostABI+`[^)]*\) => (\S+)$`).FindAllStringSubmatch(string(out), -1) {
		if libs[m[1]] != "" || strings.Contains(m[0], "hwcap") || strings.Contains(m[2], "nvidia") {
			continue
		}
		if real, err := filepath.EvalSymlinks(m[2]); err == nil {
			libs[m[1]] = real
		}
	}
	return libs, nil
}

// HostLibrary is the file that this host's own loader takes for a SONAME. What an
// NVIDIA driver installed is not among them.
func HostLibrary(soname string) (path string, ok bool) {
	libs, err := hostLibraries()
	if err != nil {
		return "", false
	}
	path, ok = libs[soname]
	return path, ok
}

// LibraryPath is the place of a library in an image of FromHostPrograms.
func LibraryPath(soname string) string { return hostLibDir[1:] + "/" + soname }
