package gpuinject

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func volumeMount(dest string) specs.Mount {
	return specs.Mount{Source: "/srv/volume", Destination: dest, Type: "bind", Options: []string{"rbind", "rw"}}
}

func TestVolumes(t *testing.T) {
	for _, tc := range []struct {
		name    string
		mount   specs.Mount
		spared  string // prefix of destinations that must not be there
		refused bool
	}{
		{name: "over the programs", mount: volumeMount("/usr/bin"), spared: "/usr/bin/"},
		{name: "over the libraries", mount: volumeMount("/usr/lib"), spared: "/usr/lib/"},
		{name: "over the libraries, by a link of the image", mount: volumeMount("/lib"), spared: "/usr/lib/"},
		{name: "over one file", mount: volumeMount("/usr/bin/nvidia-smi"), spared: "/usr/bin/nvidia-smi"},
		{name: "written oddly", mount: volumeMount("usr//bin/../bin/"), spared: "/usr/bin/"},
		{name: "bind by option only", mount: specs.Mount{Source: "/srv", Destination: "/usr/bin", Type: "none", Options: []string{"bind"}}, spared: "/usr/bin/"},
		{name: "beside", mount: volumeMount("/usr/binary")},
		{name: "a tmpfs", mount: specs.Mount{Source: "tmpfs", Destination: "/usr/local", Type: "tmpfs"}},
		{name: "around the driver's place", mount: volumeMount("/usr/local"), refused: true},
		{name: "at the driver's place", mount: volumeMount("/usr/local/nvidia"), refused: true},
		{name: "below the driver's place", mount: volumeMount("/usr/local/nvidia/lib64"), refused: true},
		{name: "at the root", mount: volumeMount("/"), refused: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
			spec.Mounts = append(spec.Mounts, tc.mount)
			dir := newBundle(t, spec)
			inj, err := inject(t, hostConfig(t), dir)
			if tc.refused {
				refused(t, err, Invalid, tc.mount.Destination, "remove that mount")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			added := destinations(readSpec(t, dir).Mounts[len(spec.Mounts):])
			if added[0] != ViewDir {
				t.Errorf("mounts %v", added)
			}
			spared := tc.spared != "" && !slices.ContainsFunc(added, func(d string) bool { return strings.HasPrefix(d, tc.spared) })
			if spared != (tc.spared != "") {
				t.Errorf("mounts %v", added)
			}
			if noted := strings.Contains(strings.Join(inj.Plan.Notes, "\n"), "not mounted at"); noted != (tc.spared != "") {
				t.Errorf("notes %q", inj.Plan.Notes)
			}
		})
	}
}

func TestViewDirIsLinkToRoot(t *testing.T) {
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	if err := os.Symlink("/", filepath.Join(dir, "rootfs/usr/local/nvidia")); err != nil {
		t.Fatal(err)
	}
	_, err := inject(t, hostConfig(t), dir)
	refused(t, err, Invalid, "/usr/local/nvidia of the image is its root directory")
}

func TestViewDirIsLinkIntoVolume(t *testing.T) {
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
	spec.Mounts = append(spec.Mounts, volumeMount("/data"))
	dir := newBundle(t, spec)
	if err := os.Symlink("/data/driver", filepath.Join(dir, "rootfs/usr/local/nvidia")); err != nil {
		t.Fatal(err)
	}
	_, err := inject(t, hostConfig(t), dir)
	refused(t, err, Invalid, "/data")
}

// What a configuration says is repeated as text, not as lines.
func TestMessagesQuotePaths(t *testing.T) {
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
	spec.Mounts = append(spec.Mounts, volumeMount("/usr/local/nvidia/x\nlevel=info msg=forged\x1b[31m"+strings.Repeat("x", 2000)))
	_, err := inject(t, hostConfig(t), newBundle(t, spec))
	refused(t, err, Invalid, `\nlevel=info`, `\x1b`)
	if len(err.Error()) > 800 {
		t.Errorf("the message has %d bytes", len(err.Error()))
	}

	spec.Mounts[len(spec.Mounts)-1].Destination = "/\n/../usr/bin"
	inj := mustInject(t, hostConfig(t), newBundle(t, spec))
	if notes := strings.Join(inj.Plan.Notes, ""); !strings.Contains(notes, "not mounted at /usr/bin/nvidia-smi") || strings.Contains(notes, "\n") {
		t.Errorf("notes %q", inj.Plan.Notes)
	}
}
