package semver

import (
	"cmp"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Version{
		"containerd github.com/containerd/containerd/v2 v2.4.2 \n":                    {2, 4, 2, ""},
		"containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da":    {1, 7, 27, ""},
		"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1": {1, 6, 20, "~ds1"},
		"containerd github.com/k3s-io/containerd v2.1.5-k3s1 fcd43222":                {2, 1, 5, "-k3s1"},
		"runc version 1.5.0-rc.1\ncommit: x":                                          {1, 5, 0, "-rc.1"},
		"runc version 1.3.0+dev":                                                      {1, 3, 0, "+dev"},
		"runc version 1.1.15+ds1\ncommit: 1.1.15+ds1-2+b4":                            {1, 1, 15, "+ds1"},
		"Version: 4.2\nGitID: v4.2":                                                   {4, 2, 0, ""},
		"crun version 1.31\ncommit: x":                                                {1, 31, 0, ""},
		"580.159.03":                                                                  {580, 159, 3, ""},
		"6.17.0-8-generic":                                                            {6, 17, 0, "-8-generic"},
		"5.15.153.1-microsoft-standard-WSL2":                                          {5, 15, 153, ".1-microsoft-standard-WSL2"},
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%q: %+v %v", text, got, err)
		}
	}
	if v, err := Parse("containerd v2"); err == nil {
		t.Errorf("got %v", v)
	}
}

// What a distribution adds does not count, and a pre-release is before its release.
func TestCompare(t *testing.T) {
	order := [][]string{
		{"1.1.15", "1.1.15+ds1", "1.1.15~ds1-1+deb12u1", "1.1.15-0ubuntu1", "1.1.15-4.fc43", "1.1.15-k3s1", "1.1.15-12-gabcdef0", "1.1.15.1"},
		{"1.2.0-alpha.9"},
		{"1.2.0-beta.1"},
		{"1.2.0-rc.1", "1.2.0~rc1", "1.2.0~rc1-1ubuntu1", "1.2.0-rc.1+dev", "1.2.0-rc.1-3-gabcdef0"},
		{"1.2.0-rc.2"},
		{"1.2.0-rc.10"},
		{"1.2.0", "1.2", "1.2.0+dev"},
		{"1.10.0"},
		{"580.159.03", "580.159.3"},
	}
	for i, some := range order {
		for j, others := range order {
			for _, a := range some {
				for _, b := range others {
					v, err := Parse(a)
					w, failed := Parse(b)
					if got := v.Compare(w); err != nil || failed != nil || got != cmp.Compare(i, j) {
						t.Errorf("%s and %s: %d, %v, %v", a, b, got, err, failed)
					}
				}
			}
		}
	}
}

// FuzzVersion parses any output of a program's --version.
func FuzzVersion(f *testing.F) {
	for _, text := range []string{"containerd github.com/containerd/containerd/v2 v2.4.2 x\n", "runc version 1.5.0-rc.1", "x 1.6.20~ds1 y", "v999999.0.0+", "1.2.3.4", "1.2.3456789"} {
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
