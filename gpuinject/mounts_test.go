package gpuinject

import (
	"cmp"
	"debug/elf"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func TestVolumes(t *testing.T) {
	show := func(p Plan) string {
		places := []string{}
		for _, m := range p.Mounts {
			places = append(places, m.Destination)
		}
		for _, l := range p.Links {
			places = append(places, l.Path)
		}
		var list []string
		for _, dir := range append(slices.Clone(view.Dirs), "/usr/bin/", "/usr/lib/") {
			if slices.ContainsFunc(places, func(name string) bool { return strings.HasPrefix(name, dir) }) {
				list = append(list, dir)
			}
		}
		if strings.Contains(strings.Join(p.Notes, "\n"), "not mounted at") {
			list = append(list, "noted")
		}
		return strings.Join(list, " ")
	}
	volume := func(at string) func(*specs.Spec) { return mounting("/srv/volume", at) }
	other := func(m specs.Mount) func(*specs.Spec) { return func(s *specs.Spec) { s.Mounts = append(s.Mounts, m) } }
	elsewhere := view.Dirs[1] + " /usr/bin/ /usr/lib/"
	const everywhere, noProgram, noLibrary = view.Dir + " /usr/bin/ /usr/lib/", view.Dir + " /usr/lib/ noted", view.Dir + " /usr/bin/ noted"
	rows := []row{
		{name: "over the programs", spec: volume("/usr/bin"), want: noProgram},
		{name: "over the libraries", spec: volume("/usr/lib"), want: noLibrary},
		{name: "over the libraries, by a link of the image", spec: volume("/lib"), want: noLibrary},
		{name: "over one file", spec: volume("/usr/bin/nvidia-smi"), want: noProgram},
		{name: "written oddly", spec: volume("usr//bin/../bin/"), want: noProgram},
		{name: "bind by option only", spec: other(specs.Mount{Source: "/srv", Destination: "/usr/bin", Type: "none", Options: []string{"bind"}}), want: noProgram},
		{name: "beside", spec: volume("/usr/binary"), want: everywhere},
		{name: "a tmpfs", spec: other(specs.Mount{Source: "tmpfs", Destination: "/usr/local", Type: "tmpfs"}), want: everywhere},
		{name: "the driver's place is a link to the root", image: func(root string) { symlink(t, "/", root+view.Dir) }, kind: verdict.KindInvalid,
			want: "refused: /usr/local/nvidia of the image is its root directory"},
		// CVE-2026-119101: CRIU reads the name of such a mount as another one.
		{name: "T72 the driver's place is a link to a name with CRIU's separator", image: func(root string) { symlink(t, "/opt/harmless]:name", root+view.Dir) }, kind: verdict.KindInvalid,
			want: `refused: /usr/local/nvidia of the image is "/opt/harmless]:name", by a link`},
		{name: "the driver's place is a link into a volume", spec: volume("/data"), image: func(root string) { symlink(t, "/data/driver", root+view.Dir) }, want: elsewhere},
		{name: "at /usr", spec: volume("/usr"), want: view.Dirs[1] + " noted"},
		{name: "at the root", spec: volume("/"), want: "refused: \"/\" ... " + strings.Join(view.Dirs, " or "), kind: verdict.KindInvalid},
	}
	for _, at := range []string{"/usr/local", view.Dir, view.Dir + "/", view.Dir + "/lib64", view.Dir + "/lib64/sub"} {
		rows = append(rows, row{name: "at " + at, spec: volume(at), want: elsewhere})
		for _, other := range []string{"/opt", view.Dirs[1] + "/bin"} {
			rows = append(rows, row{name: "at " + at + " and " + other, spec: all(volume(at), volume(other)), want: "refused: \"" + at + "\"", kind: verdict.KindInvalid})
		}
	}
	for i, r := range rows {
		rows[i].image = func(root string) {
			families()[0].image(t, root)
			if r.image != nil {
				r.image(root)
			}
		}
	}
	table{env: devices("0"), show: show, rows: rows}.run(t)
}

// The compatibility package of an image selects one of two views, whatever libraries the image
// claims to have there.
func TestACompatibilityPackageReplacesAFixedSet(t *testing.T) {
	show := func(p Plan) string {
		var left []string
		for _, f := range p.Changes.View.Spec.Files {
			stem, _, _ := strings.Cut(path.Base(f.Name), ".so")
			if slices.Contains([]string{"libcuda", "libcudadebugger", "libnvidia-ml", "libnvidia-nvvm", "libnvidia-opencl", "libnvidia-ptxjitcompiler"}, stem) {
				left = append(left, stem)
			}
		}
		slices.Sort(left)
		return strings.Join(left, " ")
	}
	compat := func(names ...string) func(string) {
		return func(root string) {
			for _, name := range names {
				stem, _, _ := strings.Cut(name, ".so")
				machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
				writeFile(t, filepath.Join(root, "usr/local/cuda/compat", name), testtree.Library(elf.ELFCLASS64, machine, stem+".so.1"), 0o644)
			}
		}
	}
	const others = "libnvidia-ml libnvidia-opencl"
	table{env: devices("0"), show: show, rows: []row{
		{name: "none", want: "libcuda libcudadebugger libnvidia-ml libnvidia-nvvm libnvidia-opencl libnvidia-ptxjitcompiler"},
		{name: "libcuda alone", image: compat("libcuda.so.999.88"), want: others},
		{name: "more", image: compat("libcuda.so.999.88", "libnvidia-ptxjitcompiler.so.999.88", "libnvidia-ml.so.1", "libnvidia-opencl.so.1"), want: others},
	}}.run(t)
}

// Messages quote values of a configuration in one line of limited length.
func TestMessagesQuotePaths(t *testing.T) {
	show := func(p Plan) string {
		notes := strings.Join(p.Notes, "")
		return fmt.Sprint(strings.Contains(notes, "not mounted at /usr/bin/nvidia-smi"), strings.Contains(notes, "\n"))
	}
	forged := view.Dir + "/x\nlevel=info msg=forged\x1b[31m"
	table{env: devices("0"), show: show, rows: []row{
		{name: "in a refusal", spec: all(mounting("/srv", forged), mounting("/srv", "/opt")), want: `refused: \nlevel=info ... \x1b`, kind: verdict.KindInvalid},
		{name: "in a note", spec: mounting("/srv", "/\n/../usr/bin"), want: "true false"},
	}}.run(t)
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
	mounting("/srv", forged+strings.Repeat("x", 2000))(spec)
	mounting("/srv", "/opt")(spec)
	_, err := resolve(t, hostConfig(t), spec, noProbe)
	refused(t, err, verdict.KindInvalid)
	if len(err.Error()) > 800 {
		t.Errorf("the message has %d bytes", len(err.Error()))
	}
}

// An image chooses the names of its directories, and errors contain these names.
func TestT47PathsOfAnImageInMessages(t *testing.T) {
	const evil = "/evil\nlevel=info msg=forged\x1bc\u202e"
	long := evil + strings.Repeat("/"+strings.Repeat("x", 200), 15)
	libs := "/" + path.Dir(families()[0].libc)
	libraryDirectory := func(dir string) func(testing.TB, string) {
		return func(t testing.TB, root string) {
			mkdir(t, path.Dir(root+dir))
			check(t, os.Rename(root+libs, root+dir))
			symlink(t, dir, root+libs)
			for i := range 45 { // more links than are followed
				symlink(t, fmt.Sprint("l", i+1), fmt.Sprintf("%s%s/l%d", root, dir, i))
			}
			symlink(t, "l0", root+dir+"/libcuda.so.1")
		}
	}
	readOnlyPlace := func(t testing.TB, root string) {
		mkdir(t, root+evil)
		check(t, os.RemoveAll(root+"/usr/local"))
		symlink(t, evil, root+"/usr/local")
		readOnly(t, root)
	}
	for name, tc := range map[string]struct {
		image func(testing.TB, string)
		kind  verdict.Kind
		words string
	}{
		"the library directory":     {libraryDirectory(evil), verdict.KindInvalid, "symbolic links"},
		"a deep library directory":  {libraryDirectory(long), verdict.KindInvalid, "symbolic links"},
		"where the driver would go": {readOnlyPlace, verdict.KindPrecondition, "read-only file system"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			in(t, tc.image)(root)
			c, err := ExamineSpec(newSpec(devices("0")...), loading(hostConfig(t)))
			check(t, err)
			_, err = resolveIn(t, c, root, noProbe)
			refused(t, err, tc.kind, tc.words)
			if strings.ContainsAny(err.Error(), "\x1b\u202e") || len(err.Error()) > 800 {
				t.Errorf("the message is %q", err)
			}
		})
	}
}

// Outside the view, a file appears as a link if the image has nothing there, and otherwise as a
// mount. The plan says the same beforehand.
func TestLinks(t *testing.T) {
	const smi, inView = "/usr/bin/nvidia-smi", view.Dir + "/bin/nvidia-smi"
	for _, tc := range []struct {
		name   string
		image  func(t testing.TB, root string)
		mounts []specs.Mount
		bound  bool
		// left is the target of the link afterwards, if it is not ours.
		left string
	}{
		{name: "nothing"},
		{name: "no directory either", image: func(_ testing.TB, root string) { _ = os.Remove(filepath.Join(root, "usr/bin")) }},
		{name: "the same link, of an earlier start", image: link(inView, smi)},
		{name: "a link to a place in the view that is gone", image: link(view.Dir+"/old/nvidia-smi", smi)},
		{name: "a file", image: file("#!", smi), bound: true},
		{name: "a FIFO", image: func(_ testing.TB, root string) { _ = unix.Mkfifo(root+smi, 0o644) }, bound: true},
		{name: "a link to a file", image: link("/bin/sh", smi), bound: true, left: "/bin/sh"},
		{name: "a tmpfs of the container above", mounts: []specs.Mount{{Source: "tmpfs", Destination: "/usr/bin", Type: "tmpfs"}}, bound: true},
		{name: "a tmpfs of the container above, by a link of the image", image: link("usr", "/alias"), mounts: []specs.Mount{{Source: "tmpfs", Destination: "/alias/bin", Type: "tmpfs"}}, bound: true},
		{name: "a tmpfs of the container beside", mounts: []specs.Mount{{Source: "tmpfs", Destination: "/usr/bi", Type: "tmpfs"}}},
		{name: "an image that cannot be written", bound: true, image: func(t testing.TB, root string) {
			mkdir(t, root+view.Dir)
			file("#!", smi)(t, root)
			file("", image.CachePath)(t, root)
			readOnly(t, root)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
			spec.Mounts = append(spec.Mounts, tc.mounts...)
			dir := newBundle(t, spec)
			root := filepath.Join(dir, "rootfs")
			if tc.image != nil {
				tc.image(t, root)
			}
			c, err := Examine(dir, loading(hostConfig(t)))
			check(t, err)
			planned, err := resolveIn(t, c, root, noProbe)
			check(t, err)
			plan := mustInject(t, hostConfig(t), dir)
			bound := slices.ContainsFunc(readSpec(t, dir).Mounts, func(m specs.Mount) bool { return m.Destination == smi })
			target, _ := os.Readlink(root + smi)
			if bound != tc.bound || !bound && target != inView || tc.left != "" && target != tc.left {
				t.Errorf("mounted: %v; link to %q", bound, target)
			}
			if given := given(t, dir); !slices.Contains(given, smi) {
				t.Errorf("given %v", given)
			}
			if tc.name == "an image that cannot be written" {
				mounts := readSpec(t, dir).Mounts
				last, notes := mounts[len(mounts)-1], strings.Join(plan.Notes, "\n")
				if plan.Linker.Cache != "mounted" || !strings.Contains(notes, "no link is made in the image") {
					t.Errorf("cache %q, notes %q", plan.Linker.Cache, notes)
				}
				if last.Destination != image.CachePath || filepath.Dir(last.Source) != dir || len(readFile(t, "/", last.Source)) == 0 {
					t.Errorf("last mount %+v", last)
				}
				return // planning writes nothing, so it cannot know
			}
			if !slices.Equal(planned.Links, plan.Links) {
				t.Errorf("links %v, planned %v", plan.Links, planned.Links)
			}
		})
	}
}

func link(target, name string) func(testing.TB, string) {
	return func(t testing.TB, root string) { symlink(t, target, root+name) }
}

func file(content, name string) func(testing.TB, string) {
	return func(t testing.TB, root string) { writeFile(t, root+name, content, 0o755) }
}

// After a data file is replaced on the host, the next container has the new file: the view is
// rebuilt.
func TestReplacedDataFile(t *testing.T) {
	h := newHost(t, sim.Options{GPUs: 1})
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
	const name = "/usr/share/nvidia/nvoptix.bin"
	dir := newBundle(t, spec)
	mustInject(t, h.cfg, dir)
	before, ok := look(t, dir, name)
	if !ok {
		t.Fatalf("no %s", name)
	}
	host := path.Join(h.cfg.Host.DriverRoot, name)
	check(t, os.WriteFile(host+".new", append(before, "of the next package"...), 0o644))
	check(t, os.Rename(host+".new", host))
	dir = newBundle(t, spec)
	mustInject(t, h.cfg, dir)
	if after, _ := look(t, dir, name); string(after) != string(before)+"of the next package" {
		t.Errorf("the container reads %q, before %q", after, before)
	}
}

// A container without our runtime has no view: each data file of the host is listed individually,
// and a generated file is reported as omitted.
func TestStandaloneDataFiles(t *testing.T) {
	c, err := ExamineSpec(newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"), loading(hostConfig(t)))
	check(t, err)
	plan, err := resolveIn(t, c, t.TempDir(), noProbe)
	check(t, err)
	s := plan.Standalone()
	if len(plan.Changes.View.Files.Data) < 8 {
		t.Fatalf("data files %v", plan.Changes.View.Files.Data)
	}
	for _, d := range plan.Changes.View.Files.Data {
		dest := d.Dest
		if !path.IsAbs(dest) {
			dest = "/usr/lib/xorg/modules/" + dest
		}
		listed := slices.Contains(s.Files, place.Bind{Source: d.Path, Destination: dest})
		if omitted := slices.Contains(s.Omitted, dest); listed == omitted || listed != (d.Data == nil) {
			t.Errorf("%s of %s: listed %v, omitted %v", dest, cmp.Or(d.Path, "nothing"), listed, omitted)
		}
	}
}

// daemonsOf makes a host on which all three daemons run.
func daemonsOf(t *testing.T, cfg *config.Config) (run, mps string) {
	t.Helper()
	run = filepath.Join(simulated.Root, "run")
	mps = filepath.Join(cfg.Host.StateDir+"-mps", "pipe")
	for _, dir := range []string{run + "/nvidia-persistenced", run + "/nvidia-fabricmanager", mps} {
		check(t, os.MkdirAll(dir, 0o755))
	}
	t.Cleanup(func() { os.RemoveAll(run + "/nvidia-persistenced"); os.RemoveAll(run + "/nvidia-fabricmanager") })
	for _, name := range []string{run + "/nvidia-persistenced/socket", run + "/nvidia-fabricmanager/socket"} {
		l, err := net.Listen("unix", name)
		check(t, err)
		t.Cleanup(func() { l.Close() })
	}
	check(t, unix.Mkfifo(mps+"/control", 0o600))
	cfg.Host.MPSPipeDirectory = mps
	return run, mps
}

func TestSockets(t *testing.T) {
	h := simulatedHost(t)
	run, mps := daemonsOf(t, h.cfg)
	configured := func(names ...string) func(*config.Config) {
		return func(c *config.Config) { c.Container.Sockets = names }
	}
	everything := configured(config.Persistenced, config.FabricManager, config.MPS)
	// Mounts of sockets, and notes.
	show := func(p Plan) string {
		var list []string
		for _, m := range p.Mounts {
			if !strings.HasPrefix(m.Source, run) && m.Source != mps {
				continue
			}
			for _, o := range []string{"bind", "nosuid", "nodev", "noexec", "rprivate"} {
				if !slices.Contains(m.Options, o) {
					t.Errorf("%s is mounted without %s", m.Destination, o)
				}
			}
			list = append(list, m.Destination+" "+m.Options[1])
		}
		for _, n := range p.Notes {
			if !strings.Contains(n, "no C library") {
				list = append(list, n)
			}
		}
		return strings.Join(list, "; ")
	}
	linked := func(root string) { mkdir(t, root+"/run"); symlink(t, "../run", mkdir(t, root+"/var")+"/run") }
	const persistenced, fabric, pipe = "/run/nvidia-persistenced ro", "/run/nvidia-fabricmanager ro", "/tmp/nvidia-mps rw"
	table{host: h, env: devices("0"), show: show, rows: []row{
		{name: "all", config: everything, image: linked, want: persistenced + "; " + fabric + "; " + pipe},
		{name: "one", config: configured(config.FabricManager), image: linked, want: fabric},
		{name: "with utility alone no MPS", env: caps("utility"), config: everything, image: linked, want: persistenced + "; " + fabric},
		{name: "with compute alone only MPS", env: caps("compute"), config: everything, image: linked, want: pipe},
		{name: "MPS of the container's own", env: []string{"CUDA_MPS_PIPE_DIRECTORY=/mps/pipe"}, config: configured(config.MPS),
			want: "no socket of mps: the container has an MPS daemon of its own by CUDA_MPS_PIPE_DIRECTORY"},
		{name: "the host's MPS by its directory in the container", env: []string{"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps/"}, config: configured(config.MPS), want: pipe},
		{name: "the host's MPS by its directory on the host", env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + mps}, config: configured(config.MPS), want: mps + " rw"},
		{name: "the host's MPS, not allowed", env: []string{"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"}, config: configured(config.FabricManager), want: fabric, image: linked},
		{name: "a mount of the container's there", spec: mounting("/srv", "/tmp"), config: configured(config.MPS),
			want: "not mounted at /tmp/nvidia-mps: the container mounts \"/tmp\" there"},
		{name: "a tmpfs of the container's above", config: configured(config.MPS), want: pipe, spec: func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Source: "tmpfs", Destination: "/tmp", Type: "tmpfs"})
		}},
		{name: "a socket's place is such a link", config: configured(config.Persistenced), image: func(root string) { symlink(t, "/opt/harmless:name", root+"/run") }, kind: verdict.KindInvalid,
			want: `refused: "/run/nvidia-persistenced" of the image is "/opt/harmless:name/nvidia-persistenced", by a link`},
		{name: "an image whose /var/run is not /run", config: configured(config.Persistenced), image: func(root string) { mkdir(t, root+"/var/run") },
			want: persistenced + "; /var" + persistenced},
	}}.run(t)
	check(t, os.Remove(run+"/nvidia-persistenced/socket"))
	check(t, os.Chmod(mps, 0o777))
	table{host: h, env: devices("0"), show: show, rows: []row{
		{name: "of a daemon that does not run or is not root's", config: everything, image: linked,
			want: fabric + "; no socket of persistenced: it does not run on this host; no socket of mps: " + mps + " is not given to containers: it is writable by users other than its owner"},
	}}.run(t)
}
