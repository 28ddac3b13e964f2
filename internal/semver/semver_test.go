package semver

import (
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	for _, c := range []struct {
		text    string
		want    Version
		distrib bool
	}{
		{"containerd github.com/containerd/containerd/v2 v2.4.2 \n", Version{2, 4, 2, ""}, false},
		{"containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da", Version{Major: 1, Minor: 7, Patch: 27}, false},
		{"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1", Version{1, 6, 20, "~ds1"}, true},
		{"containerd github.com/k3s-io/containerd v2.1.5-k3s1 fcd43222", Version{2, 1, 5, "-k3s1"}, true},
		{"runc version 1.5.0-rc.1\ncommit: x", Version{1, 5, 0, "-rc.1"}, false},
		{"runc version 1.3.0+dev", Version{1, 3, 0, "+dev"}, false},
	} {
		got, err := Parse(c.text)
		if err != nil || got != c.want || got.Distribution() != c.distrib {
			t.Errorf("%q: %+v %v, distribution %v", c.text, got, err, got.Distribution())
		}
	}
	if v, err := Parse("containerd v2"); err == nil {
		t.Errorf("got %v", v)
	}
	if (Version{1, 5, 0, "-rc.1"}).AtLeast(1, 5, 0) || !(Version{1, 5, 0, "~ds1"}).AtLeast(1, 5, 0) {
		t.Error("a pre-release is before its release, a package is not")
	}
}

// FuzzVersion parses any output of a program's --version.
func FuzzVersion(f *testing.F) {
	for _, text := range []string{"containerd github.com/containerd/containerd/v2 v2.4.2 x\n", "runc version 1.5.0-rc.1", "x 1.6.20~ds1 y", "v999999.0.0+", "1.2.3.4"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := Parse(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("%q", err)
			}
			return
		}
		if again, err := Parse(v.String()); v.Known() && (err != nil || again != v) {
			t.Errorf("%q is %+v, read again %+v, %v", text, v, again, err)
		}
	})
}
