package gpuinject

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
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
		for _, dir := range []string{ViewDir, "/usr/bin/", "/usr/lib/"} {
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
	const everywhere, noProgram, noLibrary = ViewDir + " /usr/bin/ /usr/lib/", ViewDir + " /usr/lib/ noted", ViewDir + " /usr/bin/ noted"
	rows := []row{
		{name: "over the programs", spec: volume("/usr/bin"), want: noProgram},
		{name: "over the libraries", spec: volume("/usr/lib"), want: noLibrary},
		{name: "over the libraries, by a link of the image", spec: volume("/lib"), want: noLibrary},
		{name: "over one file", spec: volume("/usr/bin/nvidia-smi"), want: noProgram},
		{name: "written oddly", spec: volume("usr//bin/../bin/"), want: noProgram},
		{name: "bind by option only", spec: other(specs.Mount{Source: "/srv", Destination: "/usr/bin", Type: "none", Options: []string{"bind"}}), want: noProgram},
		{name: "beside", spec: volume("/usr/binary"), want: everywhere},
		{name: "a tmpfs", spec: other(specs.Mount{Source: "tmpfs", Destination: "/usr/local", Type: "tmpfs"}), want: everywhere},
		{name: "the driver's place is a link to the root", image: func(root string) { symlink(t, "/", root+ViewDir) }, kind: Invalid,
			want: "refused: /usr/local/nvidia of the image is its root directory"},
		{name: "the driver's place is a link into a volume", spec: volume("/data"), image: func(root string) { symlink(t, "/data/driver", root+ViewDir) }, kind: Invalid,
			want: "refused: /data"},
	}
	for _, at := range []string{"/usr/local", ViewDir, ViewDir + "/lib64", "/"} {
		rows = append(rows, row{name: "at " + at, spec: volume(at), want: "refused: \"" + at + "\"", kind: Invalid})
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

// What a configuration says is repeated as text, not as lines, and not at any length.
func TestMessagesQuotePaths(t *testing.T) {
	show := func(p Plan) string {
		notes := strings.Join(p.Notes, "")
		return fmt.Sprint(strings.Contains(notes, "not mounted at /usr/bin/nvidia-smi"), strings.Contains(notes, "\n"))
	}
	forged := ViewDir + "/x\nlevel=info msg=forged\x1b[31m"
	table{env: devices("0"), show: show, rows: []row{
		{name: "in a refusal", spec: mounting("/srv", forged), want: `refused: \nlevel=info ... \x1b`, kind: Invalid},
		{name: "in a note", spec: mounting("/srv", "/\n/../usr/bin"), want: "true false"},
	}}.run(t)
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
	mounting("/srv", forged+strings.Repeat("x", 2000))(spec)
	_, err := resolve(t, hostConfig(t), spec, noProbe)
	refused(t, err, Invalid)
	if len(err.Error()) > 800 {
		t.Errorf("the message has %d bytes", len(err.Error()))
	}
}
