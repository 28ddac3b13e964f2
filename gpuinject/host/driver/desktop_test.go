package driver

import (
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// drawing makes a root with the libraries that manifests name.
func drawing(t testing.TB, dir string) *fakeRoot {
	r := newRoot(t)
	for _, soname := range []string{"libGLX_nvidia.so.0", "libEGL_nvidia.so.0", "libnvidia-opencl.so.1", "libnvidia-vksc-core.so.1"} {
		stem, _, _ := split(soname)
		r.lib(dir+"/"+stem+".so."+version, soname)
	}
	return r
}

// given is the data file that goes to dest.
func given(files *Files, dest string) (File, bool) {
	i := slices.IndexFunc(files.Data, func(f File) bool { return f.Dest == dest })
	if i < 0 {
		return File{}, false
	}
	return files.Data[i], true
}

// libraryPath is what a manifest names, and whether it says for which ABI.
func libraryPath(t *testing.T, text []byte) (name, api string, arch bool) {
	t.Helper()
	var m struct {
		ICD struct {
			LibraryPath string  `json:"library_path"`
			API         string  `json:"api_version"`
			Arch        *string `json:"library_arch"`
		}
	}
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return m.ICD.LibraryPath, m.ICD.API, m.ICD.Arch != nil
}

func icd(name, more string) []byte {
	return []byte(`{"file_format_version" : "1.0.0", "ICD": {"library_path": "` + name + `"` + more + `}}`)
}

const vulkanICD = "/etc/vulkan/icd.d/nvidia_icd.json"

func TestAManifestNamesALibraryAsTheContainersLoaderFindsIt(t *testing.T) {
	triple := arch.triple
	for _, tt := range []struct {
		name  string
		build func(r *fakeRoot)
		host  string // the host's file that is taken
		same  bool   // as it is
		gone  string // reason for a refusal
	}{
		{"a SONAME is left as it is", func(r *fakeRoot) {
			r.write("usr/share/vulkan/icd.d/nvidia_icd.json", icd("libGLX_nvidia.so.0", ""), 0o644)
		}, "usr/share/vulkan/icd.d/nvidia_icd.json", true, ""},
		{"an absolute path is not the container's (NixOS)", func(r *fakeRoot) {
			r.write("run/opengl-driver/share/vulkan/icd.d/nvidia_icd."+machine+".json", icd("/nix/store/abc-nvidia-x11/lib/libGLX_nvidia.so.0", ""), 0o444)
		}, "run/opengl-driver/share/vulkan/icd.d/nvidia_icd." + machine + ".json", false, ""},
		{"nor is one to the file itself (Fedora)", func(r *fakeRoot) {
			r.write("usr/share/vulkan/icd.d/nvidia_icd."+machine+".json", icd("/usr/lib64/libGLX_nvidia.so."+version, ""), 0o644)
		}, "usr/share/vulkan/icd.d/nvidia_icd." + machine + ".json", false, ""},
		{"nor a relative one", func(r *fakeRoot) {
			r.write("etc/vulkan/icd.d/nvidia_icd.json", icd("../../../usr/lib/"+triple+"/libGLX_nvidia.so.0", ""), 0o644)
		}, "etc/vulkan/icd.d/nvidia_icd.json", false, ""},
		{"the administrator's comes before the package's", func(r *fakeRoot) {
			r.write("usr/share/vulkan/icd.d/nvidia_icd.json", icd("/x/libGLX_nvidia.so.0", ""), 0o644)
			r.write("etc/vulkan/icd.d/nvidia_icd."+machine+".json", icd("libGLX_nvidia.so.0", ""), 0o644)
		}, "etc/vulkan/icd.d/nvidia_icd." + machine + ".json", true, ""},
		{"another machine's is not taken", func(r *fakeRoot) {
			r.write("usr/share/vulkan/icd.d/nvidia_icd.i686.json", icd("libGLX_nvidia.so.0", ""), 0o644)
		}, "", false, ""},
		{"one that names a library of somebody else is not taken", func(r *fakeRoot) {
			r.write("etc/vulkan/icd.d/nvidia_icd.json", icd("/tmp/libevil.so.1", ""), 0o644)
		}, "", false, `names the library "/tmp/libevil.so.1"`},
		{"one that is no JSON is not taken", func(r *fakeRoot) {
			r.write("etc/vulkan/icd.d/nvidia_icd.json", []byte("[]"), 0o644)
		}, "", false, "is not a JSON object"},
		{"one without end is not taken", func(r *fakeRoot) {
			r.write("etc/vulkan/icd.d/nvidia_icd.json", icd("libGLX_nvidia.so.0", `, "x": "`+strings.Repeat("x", maxManifest)+`"`), 0o644)
		}, "", false, "is larger than"},
		{"one that others can write is not taken", func(r *fakeRoot) {
			r.write("etc/vulkan/icd.d/nvidia_icd.json", icd("libGLX_nvidia.so.0", ""), 0o646)
		}, "", false, "can be written by everybody"},
		{"where there is none, one is made", func(r *fakeRoot) {}, "", false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := drawing(t, "usr/lib64")
			tt.build(r)
			files := r.discover()
			f, ok := given(files, vulkanICD)
			if !ok {
				t.Fatalf("no manifest; refused %+v", files.Refused)
			}
			if want := tt.host; want != "" && f.Path != filepath.Join(r.dir, want) || want == "" && f.Path != "" {
				t.Errorf("taken from %q, want %q", f.Path, want)
			}
			if (f.Data == nil) != tt.same {
				t.Errorf("content %q, the same is %v", f.Data, tt.same)
			}
			if f.Data != nil {
				name, api, _ := libraryPath(t, f.Data)
				if name != "libGLX_nvidia.so.0" && name != "libGLX_nvidia.so."+version || f.Path == "" && api != "1.4.303" {
					t.Errorf("content %s", f.Data)
				}
			}
			if got := refusal(files, "nvidia_icd.json"); tt.gone != "" && !strings.Contains(got, tt.gone) {
				t.Errorf("refused %+v", files.Refused)
			}
		})
	}
}

func TestManifestsOfOtherLoaders(t *testing.T) {
	t.Run("a server's driver has libraries and no manifests: they are made", func(t *testing.T) {
		files := drawing(t, "usr/lib64").discover()
		var dests []string
		for _, f := range files.Data {
			dests = append(dests, f.Dest)
			if f.Path != "" || len(f.Data) == 0 {
				t.Errorf("%+v", f)
			}
		}
		if want := []string{"/etc/OpenCL/vendors/nvidia.icd", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json", vulkanICD}; !slices.Equal(dests, want) {
			t.Errorf("got %v, want %v", dests, want)
		}
		egl, _ := given(files, "/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
		if name, _, _ := libraryPath(t, egl.Data); name != "libEGL_nvidia.so.0" {
			t.Errorf("%s", egl.Data)
		}
		if cl, _ := given(files, "/etc/OpenCL/vendors/nvidia.icd"); string(cl.Data) != "libnvidia-opencl.so.1\n" || len(cl.Needs) == 0 {
			t.Errorf("%+v", cl)
		}
	})
	t.Run("without the library nothing is made", func(t *testing.T) {
		r := newRoot(t)
		r.core("usr/lib64", version)
		if files := r.discover(); len(files.Data) != 0 {
			t.Errorf("%+v", files.Data)
		}
	})
	t.Run("OpenCL's file is a path on some hosts (NixOS)", func(t *testing.T) {
		r := drawing(t, "nix/store/abc/lib")
		r.link("run/opengl-driver", "/nix/store/abc")
		r.write("nix/store/abc/etc/OpenCL/vendors/nvidia.icd", []byte("/nix/store/abc/lib/libnvidia-opencl.so.1\n"), 0o444)
		f, _ := given(r.discover(), "/etc/OpenCL/vendors/nvidia.icd")
		if string(f.Data) != "libnvidia-opencl.so.1\n" || f.Path == "" || len(f.Needs) != 0 {
			t.Errorf("%+v", f)
		}
	})
	t.Run("layers name libraries as well", func(t *testing.T) {
		r := drawing(t, "usr/lib64")
		r.write("usr/share/vulkan/implicit_layer.d/nvidia_layers.json", []byte(`{"layers": [{"name": "a", "library_path": "/usr/lib64/libGLX_nvidia.so.0"}, {"name": "b", "library_path": "libGLX_nvidia.so.0"}]}`), 0o644)
		f, _ := given(r.discover(), "/etc/vulkan/implicit_layer.d/nvidia_layers.json")
		if strings.Contains(string(f.Data), "lib64") || strings.Count(string(f.Data), "libGLX_nvidia.so.0") != 2 {
			t.Errorf("%s", f.Data)
		}
	})
	t.Run("Vulkan SC has a directory of its own", func(t *testing.T) {
		r := drawing(t, "usr/lib64")
		r.write("usr/share/vulkansc/icd.d/nvidia_icd."+machine+".json", icd("/usr/lib64/libnvidia-vksc-core.so.1", ""), 0o644)
		f, _ := given(r.discover(), "/etc/vulkansc/icd.d/nvidia_icd_vksc.json")
		if name, _, _ := libraryPath(t, f.Data); name != "libnvidia-vksc-core.so.1" {
			t.Errorf("%+v", f)
		}
	})
	t.Run("a manifest for one ABI serves both where both libraries are there", func(t *testing.T) {
		for _, both := range []bool{false, true} {
			r := drawing(t, "usr/lib64")
			if both {
				_, machine32, _, _ := machines()
				r.write("usr/lib/libGLX_nvidia.so."+version, elf32(machine32, "libGLX_nvidia.so.0"), 0o755)
			}
			r.write("usr/share/vulkan/icd.d/nvidia_icd."+machine+".json", icd("/usr/lib64/libGLX_nvidia.so.0", `, "library_arch": "64"`), 0o644)
			f, _ := given(r.discover(), vulkanICD)
			if _, _, arch := libraryPath(t, f.Data); arch == both {
				t.Errorf("with both %v: %s", both, f.Data)
			}
		}
	})
	t.Run("the version of Vulkan is one that the branch has", func(t *testing.T) {
		for branch, want := range map[string]string{"440.1": "1.1.99", "470.223.02": "1.2.133", "535.1": "1.3.194", "580.159.04": "1.4.303", "1000.1": "1.4.303"} {
			if _, api, _ := libraryPath(t, []byte(vulkanJSON("libGLX_nvidia.so.0", branch))); api != want {
				t.Errorf("%s: %s, want %s", branch, api, want)
			}
		}
	})
}

// tagged is a library with the note .note.ABI-tag, which names the oldest kernel.
func tagged(soname string, kernel ...uint32) []byte {
	machine, _, _, _ := machines()
	b := elf64(machine, soname)
	at := func() uint64 { return uint64(len(b)) }
	note := at()
	for _, n := range append([]uint32{4, 16, 1, binary.LittleEndian.Uint32([]byte("GNU\x00")), 0}, kernel...) {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	names := at()
	text := "\x00.note.ABI-tag\x00.shstrtab\x00"
	b = append(b, text...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	headers := at()
	b, _ = binary.Append(b, binary.LittleEndian, []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_NOTE), Off: note, Size: names - note, Addralign: 4},
		{Name: 15, Type: uint32(elf.SHT_STRTAB), Off: names, Size: uint64(len(text)), Addralign: 1},
	})
	binary.LittleEndian.PutUint64(b[40:], headers)
	for i, n := range []uint16{64, 3, 2} {
		binary.LittleEndian.PutUint16(b[58+2*i:], n)
	}
	return b
}

func TestOfTwoTLSLibrariesTheOneWithTodaysABIIsTaken(t *testing.T) {
	name := "libnvidia-tls.so." + version
	for _, tt := range []struct {
		name         string
		beside, in   []byte
		want         string
		cacheInFirst bool
	}{
		{"in tls", tagged(name, 2, 2, 5), tagged(name, 2, 3, 99), "usr/lib64/tls/", false},
		{"beside tls", tagged(name, 2, 3, 99), tagged(name, 2, 2, 5), "usr/lib64/", false},
		{"beside tls, although the cache lists the other first", tagged(name, 2, 3, 99), tagged(name, 2, 2, 5), "usr/lib64/", true},
		{"both, as ever the first", tagged(name, 2, 3, 99), tagged(name, 2, 3, 99), "usr/lib64/", false},
		{"neither, as ever the first", tagged(name, 3, 2, 0), tagged(name, 3, 2, 0), "usr/lib64/", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoot(t)
			r.write("usr/lib64/"+name, tt.beside, 0o755)
			r.write("usr/lib64/tls/"+name, tt.in, 0o755)
			if tt.cacheInFirst {
				r.cache("/usr/lib64/tls/"+name, "/usr/lib64/"+name)
			}
			files := r.discover()
			l := r.library(files, name)
			// Below tls no loader since glibc 2.37 looks for it.
			if len(files.Libraries) != 1 || l.Path != filepath.Join(r.dir, tt.want, name) || l.Subdir != "" {
				t.Errorf("%+v", files.Libraries)
			}
		})
	}
}

func TestLibrariesOf32BitsAreKnownByTheirClassWhereverTheyAre(t *testing.T) {
	_, machine32, triple, triple32 := machines()
	for _, dir := range []string{
		"usr/lib", "usr/lib32", "usr/lib/" + triple32, "usr/lib/" + triple32 + "/nvidia/current", "run/opengl-driver-32/lib",
		"usr/lib/" + triple, "usr/lib64", // even there
		"opt/vendor/lib", "opt/vendor/lib32", // beside a directory that is configured
		"opt/other", // by the cache alone
	} {
		t.Run(dir, func(t *testing.T) {
			r := newRoot(t)
			r.core("opt/vendor/lib64", version)
			r.host.DriverLibraries = []string{"/opt/vendor/lib64"}
			r.write(dir+"/libcuda.so."+version, elf32(machine32, "libcuda.so.1"), 0o755)
			r.write(dir+"/vdpau/libvdpau_nvidia.so."+version, elf32(machine32, "libvdpau_nvidia.so.1"), 0o755)
			if dir == "opt/other" {
				r.cache("/opt/other/libcuda.so."+version, "/opt/other/vdpau/libvdpau_nvidia.so."+version)
			}
			var got []string
			for _, l := range r.discover().Libraries {
				if l.Bits == 32 {
					got = append(got, strings.TrimPrefix(l.Path, r.dir+"/"))
				}
			}
			slices.Sort(got)
			if want := []string{dir + "/libcuda.so." + version, dir + "/vdpau/libvdpau_nvidia.so." + version}; !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestModulesOfTheXServerAreFoundWhereverTheHostHasThem(t *testing.T) {
	glx := "libglxserver_nvidia.so"
	for _, tt := range []struct{ name, driver, extension string }{
		{"Debian and NVIDIA's installer", "usr/lib/xorg/modules/drivers/nvidia_drv.so", "usr/lib/xorg/modules/extensions/" + glx},
		{"Fedora", "usr/lib64/xorg/modules/drivers/nvidia_drv.so", "usr/lib64/xorg/modules/extensions/" + glx},
		{"Ubuntu", "usr/lib/" + arch.triple + "/nvidia/xorg/nvidia_drv.so", "usr/lib/" + arch.triple + "/nvidia/xorg/" + glx},
		{"Arch", "usr/lib/xorg/modules/drivers/nvidia_drv.so", "usr/lib/nvidia/xorg/" + glx},
		{"Debian without alternatives", "usr/lib/nvidia/current/nvidia_drv.so", "usr/lib/nvidia/current/" + glx},
		{"openSUSE", "usr/lib64/xorg/modules/updates/drivers/nvidia_drv.so", "usr/lib64/xorg/modules/updates/extensions/" + glx},
		{"a tree of the driver's own", "opt/nvidia/lib64/xorg/modules/drivers/nvidia_drv.so", "opt/nvidia/lib64/xorg/modules/extensions/" + glx},
		{"without the link", "usr/lib/xorg/modules/drivers/nvidia_drv.so", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoot(t)
			r.core("opt/nvidia/lib64", version)
			r.host.DriverLibraries = []string{"/opt/nvidia/lib64"}
			r.write(tt.driver, nil, 0o755)
			real := "usr/lib/xorg/modules/extensions/" + glx + "." + version
			if tt.extension != "" {
				real = tt.extension + "." + version
				r.link(tt.extension, glx+"."+version)
			}
			r.write(real, nil, 0o755)
			files := r.discover()
			drv, _ := given(files, "drivers/nvidia_drv.so")
			ext, _ := given(files, "extensions/"+glx)
			if drv.Path != filepath.Join(r.dir, tt.driver) || ext.Path != filepath.Join(r.dir, real) {
				t.Errorf("%+v, %+v", drv, ext)
			}
		})
	}
	t.Run("of another version it is not taken", func(t *testing.T) {
		r := newRoot(t)
		r.write("usr/lib/xorg/modules/extensions/"+glx+".570.1", nil, 0o755)
		r.link("usr/lib/xorg/modules/extensions/"+glx, glx+".570.1")
		if f, ok := given(r.discover(), "extensions/"+glx); ok {
			t.Errorf("%+v", f)
		}
	})
}

func TestNGXForWineIsBesideTheLibraries(t *testing.T) {
	for _, dir := range []string{"usr/lib/" + arch.triple, "usr/lib64", "usr/local/nvidia/lib64"} {
		r := drawing(t, dir)
		r.lib(dir+"/libnvidia-ngx.so."+version, "libnvidia-ngx.so.1")
		for _, name := range []string{"nvngx.dll", "_nvngx.dll", "other.dll"} {
			r.write(dir+"/nvidia/wine/"+name, []byte("MZ"), 0o644)
		}
		files := r.settled()
		got := files.For([]string{"ngx"})
		if want := []string{"libnvidia-ngx.so." + version, "nvidia/wine/nvngx.dll", "nvidia/wine/_nvngx.dll"}; !slices.Equal(libraryNames(&got), want) {
			t.Errorf("got %v, want %v", libraryNames(&got), want)
		}
		r.check(os.Remove(r.dir + "/" + dir + "/nvidia/wine/nvngx.dll"))
		if files.Fresh(r.host, []string{"ngx"}) || !files.Fresh(r.host, []string{"compute"}) {
			t.Error("who looks at them is wrong")
		}
	}
}

// A container that does not draw pays nothing for files that it does not get.
func TestFilesForGraphicsAreWatchedForGraphicsOnly(t *testing.T) {
	r := squashfs(t)
	files := r.settled()
	for _, w := range files.Watched {
		for _, word := range []string{"vulkan", "glvnd", "xorg", "X11", "egl_external", "nvidia-xconfig"} {
			if strings.Contains(w, word) {
				t.Errorf("every container looks at %s", w)
			}
		}
	}
	if len(files.DesktopWatched) == 0 {
		t.Error("nothing is watched for graphics")
	}
	r.check(os.WriteFile(r.dir+"/usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json", []byte("{ }"), 0o644))
	for caps, want := range map[string]bool{"compute": true, "video": true, "compat32": true, "graphics": false, "display": false, "ngx": false} {
		if got := files.Fresh(r.host, []string{caps}); got != want {
			t.Errorf("%s: fresh is %v", caps, got)
		}
	}
}

// Whatever a manifest of the host says, what is made of it is a manifest, and names
// libraries by name.
func FuzzPortableJSON(f *testing.F) {
	s := &search{files: &Files{Libraries: []Library{
		{Name: "libGLX_nvidia.so." + version, SOName: "libGLX_nvidia.so.0", Bits: 64}, {Name: "libGLX_nvidia.so." + version, SOName: "libGLX_nvidia.so.0", Bits: 32},
	}}}
	for _, seed := range []string{
		`{}`, `{"ICD": {"library_path": "/x/libGLX_nvidia.so.0", "library_arch": "64"}}`, `{"ICD": [], "layer": {"library_path": 1}}`,
		`{"layers": [{"library_path": "../libGLX_nvidia.so.0"}, null, []]}`, `{"ICD": {"library_path": "/"}}`, `[]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		out, reason := s.portableJSON(text)
		if out == nil {
			return
		}
		again, more := s.portableJSON(out)
		if reason != "" || more != "" || again != nil || strings.Contains(string(out), `"library_path": "/`) {
			t.Errorf("%q gives %q (%s), and that %q (%s)", text, out, reason, again, more)
		}
	})
}
