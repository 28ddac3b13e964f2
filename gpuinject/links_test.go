package gpuinject

import (
	"cmp"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// A file of the view is at its other places by a link where the image has nothing
// there, and by a mount elsewhere. A plan says the same before anything is done.
func TestLinks(t *testing.T) {
	const smi, inView = "/usr/bin/nvidia-smi", ViewDir + "/bin/nvidia-smi"
	for _, tc := range []struct {
		name   string
		image  func(root string) error
		mounts []specs.Mount
		bound  bool
		// left is what the link holds afterwards, if it is not ours.
		left string
	}{
		{name: "nothing"},
		{name: "no directory either", image: func(root string) error { return os.RemoveAll(filepath.Join(root, "usr/bin")) }},
		{name: "the same link, of an earlier start", image: link(inView, smi)},
		{name: "a link to a place in the view that is gone", image: link(ViewDir+"/old/nvidia-smi", smi)},
		{name: "a link of its own to the file in the view", image: link("../local/nvidia/bin/nvidia-smi", smi)},
		{name: "a file", image: func(root string) error { return os.WriteFile(root+smi, []byte("#!"), 0o755) }, bound: true},
		{name: "an empty file, which a mount left", image: func(root string) error { return os.WriteFile(root+smi, nil, 0o755) }, bound: true},
		{name: "a FIFO", image: func(root string) error { return unix.Mkfifo(root+smi, 0o644) }, bound: true},
		{name: "a link to a file", image: link("/bin/sh", smi), bound: true, left: "/bin/sh"},
		{name: "a link into nowhere", image: link("/nowhere", smi), bound: true, left: "/nowhere"},
		{name: "a link that climbs", image: link(strings.Repeat("../", 40)+"etc/passwd", smi), bound: true, left: strings.Repeat("../", 40) + "etc/passwd"},
		{name: "a tmpfs of the container above", mounts: []specs.Mount{{Source: "tmpfs", Destination: "/usr/bin", Type: "tmpfs"}}, bound: true},
		{name: "a tmpfs of the container above, by a link of the image", image: link("usr", "/alias"), mounts: []specs.Mount{{Source: "tmpfs", Destination: "/alias/bin", Type: "tmpfs"}}, bound: true},
		{name: "a tmpfs of the container beside", mounts: []specs.Mount{{Source: "tmpfs", Destination: "/usr/bi", Type: "tmpfs"}}},
		{name: "an image that cannot be written", image: readOnly, bound: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
			spec.Mounts = append(spec.Mounts, tc.mounts...)
			dir := newBundle(t, spec)
			root := filepath.Join(dir, "rootfs")
			if tc.image != nil {
				if err := tc.image(root); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
			}
			c, err := Examine(dir, loading(hostConfig(t)))
			if err != nil {
				t.Fatal(err)
			}
			plan, err := resolveIn(t, c, root, noProbe)
			if err != nil {
				t.Fatal(err)
			}
			inj := mustInject(t, hostConfig(t), dir)
			bound := slices.ContainsFunc(readSpec(t, dir).Mounts, func(m specs.Mount) bool { return m.Destination == smi })
			target, _ := os.Readlink(root + smi)
			if bound != tc.bound || !bound && target != inView || tc.left != "" && target != tc.left {
				t.Errorf("mounted: %v; link to %q", bound, target)
			}
			if given := given(t, dir); !slices.Contains(given, smi) {
				t.Errorf("given %v", given)
			}
			if tc.name == "an image that cannot be written" {
				if notes := strings.Join(inj.Plan.Notes, "\n"); !strings.Contains(notes, "no link is made in the image") {
					t.Errorf("notes %q", notes)
				}
				return // a plan writes nothing, and cannot know
			}
			if !slices.Equal(plan.Links, inj.Plan.Links) {
				t.Errorf("links %v, planned %v", inj.Plan.Links, plan.Links)
			}
		})
	}
}

func link(target, name string) func(root string) error {
	return func(root string) error { return os.Symlink(target, root+name) }
}

// readOnly makes a root file system read-only.
func readOnly(root string) error {
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// A container that is started again, also after the driver was upgraded, has good
// links: no name of one has the driver's version in it.
func TestLinksHaveNoVersion(t *testing.T) {
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"))
	inj := mustInject(t, hostConfig(t), dir)
	if len(inj.Plan.Links) < 8 {
		t.Errorf("links %v", inj.Plan.Links)
	}
	for _, l := range inj.Plan.Links {
		if strings.Contains(l.Path+l.Target, simulated.Version) {
			t.Errorf("link %v", l)
		}
	}
}

// A data file that was replaced on the host is the new one in the next container: it is
// in the view, which is made again.
func TestReplacedDataFile(t *testing.T) {
	_, cfg := newHost(t, sim.Options{GPUs: 1})
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
	const name = "/usr/share/nvidia/nvoptix.bin"
	dir := newBundle(t, spec)
	mustInject(t, cfg, dir)
	before, ok := look(t, dir, name)
	if !ok {
		t.Fatalf("no %s", name)
	}
	host := path.Join(cfg.Host.DriverRoot, name)
	if err := os.WriteFile(host+".new", append(before, "of the next package"...), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(host+".new", host); err != nil {
		t.Fatal(err)
	}
	dir = newBundle(t, spec)
	mustInject(t, cfg, dir)
	if after, _ := look(t, dir, name); string(after) != string(before)+"of the next package" {
		t.Errorf("the container reads %q, before %q", after, before)
	}
}

// A container without our runtime has no view: each data file of the host is listed by
// itself, and one that is made is said to be left out.
func TestStandaloneDataFiles(t *testing.T) {
	c := mustExamine(t, hostConfig(t), newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"))
	plan, err := resolveIn(t, c, t.TempDir(), noProbe)
	if err != nil {
		t.Fatal(err)
	}
	s := plan.Standalone()
	if len(plan.files.Data) < 8 {
		t.Fatalf("data files %v", plan.files.Data)
	}
	for _, d := range plan.files.Data {
		dest := d.Dest
		if !path.IsAbs(dest) {
			dest = "/usr/lib/xorg/modules/" + dest
		}
		listed := slices.Contains(s.Files, Bind{d.Path, dest})
		if omitted := slices.Contains(s.Omitted, dest); listed == omitted || listed != (d.Data == nil) {
			t.Errorf("%s of %s: listed %v, omitted %v", dest, cmp.Or(d.Path, "nothing"), listed, omitted)
		}
	}
}
