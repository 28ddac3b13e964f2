package gpuinject

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

func tmpfs(at string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Source: "tmpfs", Destination: at, Type: "tmpfs"})
	}
}

// in makes an image that has a C library and these files.
func in(t *testing.T, files ...func(testing.TB, string)) func(root string) {
	return func(root string) {
		families()[0].image(t, root)
		for _, make := range files {
			make(t, root)
		}
	}
}

// T53: runc follows links in the image and in volumes that are already mounted.
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
		{name: "a link of a link on the way is below the volume", spec: mounting("/srv", "/a"),
			image: in(t, link("/a/vulkan", "/etc/vulkan"), file("", "/a/file"), link("/opt/vulkan", "/a/vulkan"), file("", "/opt/vulkan/icd.d/nvidia_icd.json"))},
		{name: "the driver's directory is a link below the volume", image: in(t, link("/opt", "/usr/local/nvidia")), spec: all(mounting("/srv", "/usr/local"), mounting("/srv", "/opt/x"))},
		{name: "below another volume", image: in(t), spec: all(mounting(volume, "/data"), mounting("/srv", "/data/plain/dir"), mounting("/srv", "/data/new"))},
		{name: "below a file", image: in(t), spec: all(mounting("/etc/passwd", "/data"), mounting("/srv", "/data/link"))},
		{name: "below a link of another volume", image: in(t), spec: all(mounting(volume, "/data"), mounting("/srv", "/data/link/bin")), kind: verdict.KindInvalid,
			want: `refused: the container mounts a volume at "/data/link/bin", by a link in its volume at "/data"`},
		{name: "below a link of the last volume at a path", image: in(t), spec: all(mounting("/srv", "/data"), mounting(volume, "/data"), mounting("/srv", "/data/link/bin")), kind: verdict.KindInvalid,
			want: `refused: the container mounts a volume at "/data/link/bin", by a link in its volume at "/data"`},
		{name: "below a link of a volume that another one hides", image: in(t), spec: all(mounting(volume, "/data"), mounting("/srv", "/data"), mounting("/srv", "/data/link/bin"))},
		{name: "below a link of a volume that hides another one", image: in(t), spec: all(mounting("/srv", "/data/link"), mounting(volume, "/data"), mounting("/srv", "/data/link/bin")), kind: verdict.KindInvalid,
			want: `refused: the container mounts a volume at "/data/link/bin", by a link in its volume at "/data"`},
		{name: "below a volume in a volume with a link", image: in(t), spec: all(mounting(volume, "/data"), mounting("/srv", "/data/plain"), mounting("/srv", "/data/plain/link"))},
		{name: "below such a link, by a link of the image", image: in(t, link("/data/relative", "/alias")), kind: verdict.KindInvalid,
			spec: all(mounting(volume, "/data"), mounting("/srv", "/alias/bin")), want: `refused: "/alias/bin", by a link in its volume at "/data"`},
	}}.run(t)
}

// Every volume is compared with one other, not with all. The limit is many times what this takes,
// and a fraction of what comparing them all takes.
func TestManyVolumes(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	processorTime := func() time.Duration {
		var used unix.Rusage
		check(t, unix.Getrusage(unix.RUSAGE_THREAD, &used))
		return time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	img, err := image.Open(t.TempDir())
	check(t, err)
	defer img.Close()
	volume := t.TempDir()
	var mounts []specs.Mount
	for i := range 4096 {
		at := "/v"
		if i >= 2048 {
			at = fmt.Sprint("/v/", i)
		}
		mounts = append(mounts, specs.Mount{Source: volume, Destination: at, Type: "bind"})
	}
	before := processorTime()
	root, err := place.ReadMounts(place.Container{Bundle: &bundle.Bundle{Spec: bundle.Spec{Mounts: mounts}}}, img, nil)
	if took := processorTime() - before; err != nil || len(root.Volumes) != len(mounts) || took > 2*time.Second {
		t.Errorf("%d volumes, %v, took %v", len(root.Volumes), err, took)
	}
}

// No descriptor of a volume stays open: a pod's shim lives as long as the pod.
func TestVolumesAreClosed(t *testing.T) {
	volume, open := t.TempDir(), func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	resolve := func() {
		planOf(t, all(mounting(volume, "/a"), mounting(volume, "/a/b"), mounting(volume, "/c")))
	}
	resolve()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector would close leaked files
	before := open()
	for range 3 {
		resolve()
	}
	if after := open(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// T53: runc makes the nodes of linux.devices after all mounts.
func TestNoDeviceNodeIsMadeInAVolume(t *testing.T) {
	const channels = "/dev/nvidia-caps-imex-channels"
	show := func(p Plan) string { return "given" }
	env := []string{"NVIDIA_IMEX_CHANNELS=0"}
	host := hostConfig(t).Host.DevRoot
	table{env: devices("0"), show: show, rows: []row{
		{name: "channels", env: env, spec: mounting("/srv", channels), kind: verdict.KindInvalid, want: "refused: \"" + channels + "\" ... " + channels + "/channel0"},
		{name: "channels, by a link of the image", env: env, spec: mounting("/srv", "/alias"), image: in(t, link(channels, "/alias")), kind: verdict.KindInvalid,
			want: "refused: \"/alias\" ... " + channels + "/channel0"},
		{name: "an image whose directory is a link", env: env, spec: mounting("/srv", channels), image: in(t, link("/elsewhere", channels)), kind: verdict.KindInvalid,
			want: "refused: \"" + channels},
		{name: "the host's channels", env: env, spec: mounting(host+channels, channels), want: "given"},
		{name: "another directory without a node", spec: mounting("/srv", channels), want: "given"},
		{name: "at the node itself", spec: mounting("/dev/null", "/dev/nvidiactl"), want: "given"},
		{name: "/dev, where runc makes none", env: env, spec: mounting("/srv", "/dev"), want: "given"},
	}}.run(t)
}

// The loader's cache is written where the container sees it, or mounted if that is possible;
// otherwise the driver's libraries are put into the loader's own directory.
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
		if slices.ContainsFunc(p.Links, func(l place.Link) bool { return l.Path == jit }) ||
			slices.ContainsFunc(p.Mounts, func(m place.Mount) bool { return m.Destination == jit }) {
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
	// An image that cannot be written needs the driver's directory.
	readOnly := func(t testing.TB, root string) {
		mkdir(t, root+view.Dir)
		readOnly(t, root)
	}
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
		{name: "read-only", image: image(file("", cache), readOnly), want: mounted},
		{name: "read-only, without a cache", image: image(readOnly), want: "unchanged"},
		{name: "read-only, a link", image: image(elsewhere, file("", "/data/cache"), readOnly), want: "mounted /data/cache"},
		{name: "read-only, a link to a name with CRIU's separator", image: image(link("/data/harmless:name", cache), file("", "/data/harmless:name"), readOnly), want: "unchanged"},
		{name: "read-only, a link into nowhere", image: image(elsewhere, readOnly), want: "unchanged"},
		{name: "immutable", image: image(file("", cache), immutable("/etc")), want: mounted},
		{name: "read-only, a link into a volume", image: image(elsewhere, readOnly), spec: mounting("/srv", "/data"), want: "unchanged"},
		{name: "read-only, a link to a sysctl (T08)", image: image(link("/proc/sys/vm/swappiness", cache), readOnly), want: "unchanged"},
		{name: "read-only, below a link into a volume", image: image(etc, readOnly), spec: mounting("/srv", "/data"), want: "hidden"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := show(planOf(t, tc.spec, tc.image...)); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// immutable makes a directory of the image immutable.
func immutable(name string) func(testing.TB, string) {
	return func(t testing.TB, root string) {
		dir, err := os.Open(root + name)
		check(t, err)
		flags, err := unix.IoctlGetInt(int(dir.Fd()), unix.FS_IOC_GETFLAGS)
		check(t, err)
		check(t, unix.IoctlSetPointerInt(int(dir.Fd()), unix.FS_IOC_SETFLAGS, flags|unix.STATX_ATTR_IMMUTABLE))
		t.Cleanup(func() {
			check(t, unix.IoctlSetPointerInt(int(dir.Fd()), unix.FS_IOC_SETFLAGS, flags))
			dir.Close()
		})
	}
}

// runc's message would not say what to do.
func TestAnImageThatCannotBeWritten(t *testing.T) {
	const noView = "refused: NVIDIA_VISIBLE_DEVICES=\"0\": the image has no directory /usr/local/nvidia ... "
	const smi = "/usr/bin/nvidia-smi"
	show := func(p Plan) string {
		switch {
		case slices.ContainsFunc(p.Mounts, func(m place.Mount) bool { return m.Destination == smi }):
			return "nvidia-smi is mounted"
		case strings.Contains(strings.Join(p.Notes, "\n"), "nothing is put at "+smi+": "):
			return "the view alone"
		}
		return "the view and links"
	}
	readOnlyWithView := func(t testing.TB, root string) {
		mkdir(t, root+view.Dir)
		readOnly(t, root)
	}
	noDirectory := func(t testing.TB, root string) {
		check(t, os.RemoveAll(root+"/usr/local"))
		file("", "/usr/local")(t, root)
	}
	image := func(files ...func(testing.TB, string)) []func(testing.TB, string) { return files }
	for _, tc := range []struct {
		name  string
		image []func(testing.TB, string)
		spec  func(*specs.Spec)
		want  string
	}{
		{"read-only", image(readOnly), nil, noView + "read-only file system: make the root file system writable"},
		{"read-only, with a tmpfs", image(readOnly), tmpfs("/usr/local"), "the view alone"},
		{"read-only, with the directory", image(readOnlyWithView), nil, "the view alone"},
		{"read-only, with the program", image(file("", smi), readOnlyWithView), nil, "nvidia-smi is mounted"},
		{"immutable", image(file("", "/usr/local/x"), immutable("/usr/local")), nil, noView + "operation not permitted"},
		{"immutable, with the directory", image(file("", view.Dir+"/x"), immutable("/usr/local")), nil, "the view and links"},
		{"immutable programs", image(file("", "/usr/bin/x"), immutable("/usr/bin")), nil, "the view alone"},
		{"a file", image(noDirectory), nil, noView + "not a directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := row{image: in(t, tc.image...), spec: tc.spec, host: simulatedHost(t), kind: verdict.KindPrecondition}
			if got := (table{env: devices("0"), show: show}).outcome(t, r); !matches(got, tc.want) {
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
	if len(p.Mounts) != 2 || p.Mounts[0].Destination != view.Dir || p.Mounts[1].Destination != byPathDest || len(p.Links) > 0 {
		t.Errorf("mounts %+v, links %+v", p.Mounts, p.Links)
	}
	if p.Linker.Cache != "unchanged" || !strings.Contains(strings.Join(p.Notes, "\n"), "nothing is put at "+libs) {
		t.Errorf("cache %s, notes %q", p.Linker.Cache, p.Notes)
	}
}

// The same for directories that are mounted in a root file system after the plan was made.
func TestNothingIsPutIntoMountsThatComeLater(t *testing.T) {
	dir := newBundle(t, newSpec(append(devices("0"), caps("all")...)...))
	rootfs := filepath.Join(dir, "rootfs")
	c, err := Examine(dir, loading(hostConfig(t)))
	check(t, err)
	root, err := image.Open(rootfs)
	check(t, err)
	defer root.Close()
	plan, err := Resolve(c, root, noProbe)
	check(t, err)
	if plan.Linker.Cache != "written" || !slices.ContainsFunc(plan.Links, func(l place.Link) bool { return l.Path == "/usr/bin/nvidia-smi" }) {
		t.Fatalf("cache %s, links %+v", plan.Linker.Cache, plan.Links)
	}
	host := t.TempDir()
	for _, name := range []string{"/etc", "/usr/bin"} {
		mount(t, host, rootfs+name)
	}
	plan, mask, err := Apply(c, plan, root)
	check(t, err)
	mask.Close()
	for _, m := range plan.Mounts {
		if strings.HasPrefix(m.Destination, "/etc/ld") || strings.HasPrefix(m.Destination, "/usr/bin/") {
			t.Errorf("mounted at %s", m.Destination)
		}
	}
	if left, _ := os.ReadDir(host); len(left) > 0 {
		t.Errorf("in the host's directory: %v", left)
	}
}
