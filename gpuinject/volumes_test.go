package gpuinject

import (
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
)

func tmpfs(at string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Source: "tmpfs", Destination: at, Type: "tmpfs"})
	}
}

// in makes an image of files in one with a C library.
func in(t *testing.T, files ...func(testing.TB, string)) func(root string) {
	return func(root string) {
		families()[0].image(t, root)
		for _, make := range files {
			make(t, root)
		}
	}
}

// T53: runc follows links of an image and of volumes, while volumes are there.
func TestNothingIsPutIntoAVolumeByALink(t *testing.T) {
	const smi = "/usr/bin/nvidia-smi"
	volume := t.TempDir()
	mkdir(t, volume+"/plain/dir")
	symlink(t, "/usr", volume+"/link")
	symlink(t, "plain", volume+"/relative")
	show := func(p Plan) string {
		var list []string
		for _, m := range p.Mounts {
			if path.Base(m.Destination) == path.Base(smi) || strings.Contains(m.Destination, "vulkan") {
				list = append(list, m.Destination)
			}
		}
		return strings.Join(list, " ")
	}
	table{env: append(devices("0"), caps("all")...), show: show, rows: []row{
		{name: "the image has a link below the volume", image: in(t, link("/opt/smi", smi)), spec: mounting("/srv", "/usr/bin")},
		{name: "a directory on the way is a link below the volume", image: in(t, link("/opt/vulkan", "/etc/vulkan")), spec: mounting("/srv", "/etc")},
		{name: "below another volume", image: in(t), spec: all(mounting(volume, "/data"), mounting("/srv", "/data/plain/dir"), mounting("/srv", "/data/new"))},
		{name: "below a file", image: in(t), spec: all(mounting("/etc/passwd", "/data"), mounting("/srv", "/data/link"))},
		{name: "below a link of another volume", image: in(t), spec: all(mounting(volume, "/data"), mounting("/srv", "/data/link/bin")), kind: Invalid,
			want: `refused: the container mounts "/srv" at "/data/link/bin", by a link in its volume at "/data"`},
		{name: "below such a link, by a link of the image", image: in(t, link("/data/relative", "/alias")), kind: Invalid,
			spec: all(mounting(volume, "/data"), mounting("/srv", "/alias/bin")), want: `refused: "/alias/bin", by a link in its volume at "/data"`},
	}}.run(t)
}

// T53: runc makes the nodes of linux.devices after all mounts.
func TestNoDeviceNodeIsMadeInAVolume(t *testing.T) {
	const channels = "/dev/nvidia-caps-imex-channels"
	show := func(p Plan) string { return "given" }
	env := []string{"NVIDIA_IMEX_CHANNELS=0"}
	host := hostConfig(t).Host.DevRoot
	table{env: devices("0"), show: show, rows: []row{
		{name: "channels", env: env, spec: mounting("/srv", channels), kind: Invalid, want: "refused: \"/srv\" ... " + channels + "/channel0"},
		{name: "channels, by a link of the image", env: env, spec: mounting("/srv", "/alias"), image: in(t, link(channels, "/alias")), kind: Invalid,
			want: "refused: \"/srv\" at \"/alias\" ... " + channels + "/channel0"},
		{name: "an image whose directory is a link", env: env, spec: mounting("/srv", channels), image: in(t, link("/elsewhere", channels)), kind: Invalid,
			want: "refused: \"/srv\" at \"" + channels},
		{name: "the host's channels", env: env, spec: mounting(host+channels, channels), want: "given"},
		{name: "another directory without a node", spec: mounting("/srv", channels), want: "given"},
		{name: "at the node itself", spec: mounting("/dev/null", "/dev/nvidiactl"), want: "given"},
		{name: "/dev, where runc makes none", env: env, spec: mounting("/srv", "/dev"), want: "given"},
	}}.run(t)
}

// The loader's cache is written where the container sees it, mounted where it may be, and else
// the driver's libraries are in the loader's own directory.
func TestWhereTheLoadersCacheGoes(t *testing.T) {
	libs := filepath.Dir("/" + families()[0].libc)
	jit := path.Join(libs, "libnvidia-ptxjitcompiler.so.1")
	show := func(p Plan) string {
		list := []string{p.Linker.Cache}
		for _, m := range p.Mounts {
			if path.Base(m.Source) == cacheName {
				list = append(list, m.Destination)
			}
		}
		if slices.ContainsFunc(p.Links, func(l PlanLink) bool { return l.Path == jit }) ||
			slices.ContainsFunc(p.Mounts, func(m PlanMount) bool { return m.Destination == jit }) {
			list = append(list, "libraries")
		}
		if strings.Contains(strings.Join(p.Notes, "\n"), "the loader may prefer "+libs+"/glibc-hwcaps/") {
			list = append(list, "noted")
		}
		return strings.Join(list, " ")
	}
	hwcaps := file("", libs+"/glibc-hwcaps/x86-64-v3/libcuda.so.1")
	const cache = image.CachePath
	elsewhere := link("/data/cache", cache)
	etc := func(t testing.TB, root string) {
		check(t, unix.Rmdir(root+"/etc"))
		symlink(t, "/data", root+"/etc")
	}
	const written, mounted, hidden = "written", "mounted " + cache, "hidden libraries"
	image := func(files ...func(testing.TB, string)) []func(testing.TB, string) { return files }
	for _, tc := range []struct {
		name  string
		image []func(testing.TB, string)
		spec  func(*specs.Spec)
		want  string
	}{
		{name: "nothing in the way", image: image(hwcaps), want: written},
		{name: "a link, which is replaced", image: image(elsewhere), want: written},
		{name: "a link into a volume, which is replaced", image: image(elsewhere), spec: mounting("/srv", "/data"), want: written},
		{name: "a volume above", spec: mounting("/srv", "/etc"), want: hidden},
		{name: "a volume above, and glibc-hwcaps", image: image(hwcaps), spec: mounting("/srv", "/etc"), want: hidden + " noted"},
		{name: "a volume above, by a link", image: image(etc), spec: mounting("/srv", "/data"), want: hidden},
		{name: "a volume over it", spec: mounting("/srv", cache), want: hidden},
		{name: "a tmpfs above", spec: tmpfs("/etc"), want: mounted},
		{name: "a tmpfs above, by a link", image: image(etc), spec: tmpfs("/data"), want: "mounted /data/ld.so.cache"},
		{name: "a tmpfs above a link", image: image(elsewhere), spec: tmpfs("/etc"), want: mounted},
		{name: "read-only", image: image(readOnly), want: mounted},
		{name: "read-only, a link", image: image(elsewhere, readOnly), want: "mounted /data/cache"},
		{name: "read-only, a link into a volume", image: image(elsewhere, readOnly), spec: mounting("/srv", "/data"), want: "unchanged"},
		{name: "read-only, a link to a sysctl (T08)", image: image(link("/proc/sys/vm/swappiness", cache), readOnly), want: "unchanged"},
		{name: "read-only, below a link into a volume", image: image(etc, readOnly), spec: mounting("/srv", "/data"), want: hidden},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := show(planOf(t, tc.spec, tc.image...)); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// planOf plans a container that asks for everything. Its image has a C library and files.
func planOf(t *testing.T, spec func(*specs.Spec), files ...func(testing.TB, string)) Plan {
	t.Helper()
	root := t.TempDir()
	in(t, files...)(root)
	s := newSpec(append(devices("0"), caps("all")...)...)
	if spec != nil {
		spec(s)
	}
	c, err := ExamineSpec(s, loading(hostConfig(t)))
	check(t, err)
	p, err := resolveIn(t, c, root, noProbe)
	check(t, err)
	return p
}

// runc would make mount points in directories of the host that are mounted in a root file system.
func TestNothingIsPutIntoMountsOfTheRootFileSystem(t *testing.T) {
	libs := "/" + strings.SplitN(families()[0].libc, "/", 2)[0]
	mounted := func(t testing.TB, root string) {
		for _, dir := range []string{"/etc", libs} {
			mount(t, root+dir, root+dir)
		}
	}
	p := planOf(t, tmpfs("/run"), mounted)
	if len(p.Mounts) != 2 || p.Mounts[0].Destination != ViewDir || p.Mounts[1].Destination != byPathDest || len(p.Links) > 0 {
		t.Errorf("mounts %+v, links %+v", p.Mounts, p.Links)
	}
	if p.Linker.Cache != "unchanged" || !strings.Contains(strings.Join(p.Notes, "\n"), "nothing is put at "+libs) {
		t.Errorf("cache %s, notes %q", p.Linker.Cache, p.Notes)
	}
}
