package advisories

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
)

func parse(t *testing.T, text string) semver.Version {
	t.Helper()
	v, err := semver.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestTheTableIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range Table {
		if seen[a.Component+a.ID] || a.Component == "" || a.ID == "" || a.Class == "" || !strings.HasPrefix(a.Source, "https://") || (a.Effect == "") != (a.Class == Unknown) {
			t.Errorf("%+v", a)
		}
		seen[a.Component+a.ID] = true
		var last semver.Version
		for _, text := range a.Fixed {
			v := parse(t, text)
			if v.Compare(last) <= 0 {
				t.Errorf("%s: %s is not in order", a.ID, text)
			}
			last = v
		}
		for _, text := range append(a.Kernels, strings.Fields(a.Since)...) {
			parse(t, text)
		}
	}
	if _, err := time.Parse(time.DateOnly, Reviewed); err != nil {
		t.Error(err)
	}
}

func TestT70Advisories(t *testing.T) {
	for _, c := range []struct {
		component, version, kernel, id string
		affected                       bool
	}{
		{Containerd, "2.3.2", "", "CVE-2026-53495", true},
		{Containerd, "2.4.0", "", "CVE-2026-53493", true},
		{Containerd, "2.4.0", "", "CVE-2026-53495", false},
		{Containerd, "2.4.0-rc.1", "", "CVE-2026-53488", true},
		{Containerd, "2.5.0", "", "CVE-2026-95839", false},
		{Containerd, "3.0.0", "", "CVE-2026-95839", false},
		{Containerd, "1.8.0", "", "CVE-2026-53493", true},
		{Containerd, "1.7.24~ds1", "", "CVE-2026-53488", true},
		{Containerd, "1.7.24~ds1", "", "CVE-2026-53492", false}, // it has no restore
		{Containerd, "v2.3.7-k3s1", "", "CVE-2026-95839", false},
		{Runc, "1.1.15+ds1", "", "CVE-2025-31133", true},
		{Runc, "1.1.15+ds1", "", "CVE-2024-21626", false},
		{Runc, "1.3.7-0ubuntu1", "", "CVE-2026-119101", false},
		{Runc, "1.3.7-4.fc43", "", "CVE-2026-119101", false},
		{Runc, "1.5.2", "", "CVE-2026-119101", true},
		{Runc, "1.6.0-rc.1", "", "CVE-2026-119101", true},
		{Runc, "1.6.0-rc.2", "", "CVE-2026-119101", false},
		{Runc, "1.6.0", "", "CVE-2026-119101", false},
		{Runc, "1.6.0-rc.1", "", "CVE-2026-41579", false},
		{Runc, "1.5.1", "6.18.0-1-amd64", "runc pull request 5403", true},
		{Runc, "1.5.2", "6.18.0-1-amd64", "runc pull request 5403", false},
		{Runc, "1.5.1", "6.16.9", "runc pull request 5403", false},
		{Runc, "1.5.1", "7.2.0", "runc pull request 5403", false},
		{Runc, "1.5.1", "", "runc pull request 5403", false},
		{Crun, "1.30", "", "CVE-2026-115520", true},
		{Crun, "1.31", "", "CVE-2026-115520", false},
		{CRIU, "4.3", "", "CVE-2026-119614", true},
		{CRIU, "4.3.1", "", "CVE-2026-119614", false},
		{Driver, "580.159.02", "", "CVE-2026-24187 and others", true},
		{Driver, "580.159.04", "", "CVE-2026-24187 and others", false},
		{Driver, "590.48.01", "", "CVE-2026-24187 and others", true},
		{Driver, "615.10", "", "CVE-2026-24187 and others", false},
	} {
		var kernel semver.Version
		if c.kernel != "" {
			kernel = parse(t, c.kernel)
		}
		list := Check(c.component, parse(t, c.version), kernel)
		if got := slices.ContainsFunc(list, func(a Advisory) bool { return a.ID == c.id }); got != c.affected {
			t.Errorf("%s %s on kernel %q: %s is %v", c.component, c.version, c.kernel, c.id, got)
		}
	}
	if list := Check(Runc, semver.Version{Major: 9}, semver.Version{}); len(list) > 0 {
		t.Errorf("a later line: %v", list)
	}
	if !(Advisory{}).affects(semver.Version{Major: 9}, semver.Version{}) {
		t.Error("without a known fix every version is affected")
	}
}

func TestSafe(t *testing.T) {
	for component, want := range map[string]string{
		Containerd: "2.3.7 2.4.2", Runc: "1.3.7 1.4.4 1.5.3 1.6.0-rc.2", Crun: "1.31", CRIU: "4.3.1", Driver: "535.309.01 580.159.03 595.71.05",
	} {
		if got := strings.Join(Safe(component, semver.Version{}), " "); got != want {
			t.Errorf("%s: %s, want %s", component, got, want)
		}
	}
	if got := Safe(Runc, parse(t, "6.18.0")); slices.Contains(got, "1.3.7") || !slices.Contains(got, "1.4.4") {
		t.Errorf("on kernel 6.18: %s", got)
	}
}

// What may write and restore checkpoints follows from the advisories.
func TestCheckpointsNeedTheFixes(t *testing.T) {
	for _, tc := range []struct {
		check  func(string) error
		output string
		safe   bool
	}{
		{CheckRuntime, "runc version 1.5.3\ncommit: v1.5.3-0-gabc\nspec: 1.3.0\n", true},
		{CheckRuntime, "runc version 1.5.2\nspec: 1.3.0", false},
		{CheckRuntime, "runc version 1.5.3-rc.1", false},
		{CheckRuntime, "runc version 1.5.3~rc1+ds1", false},
		{CheckRuntime, "runc version 1.5.3.rc1", false},
		{CheckRuntime, "runc version 1.5.10", true},
		{CheckRuntime, "runc version 1.4.4", true},
		{CheckRuntime, "runc version 1.4.3", false},
		{CheckRuntime, "runc version 1.3.7", true},
		{CheckRuntime, "runc version 1.3.7-0ubuntu1", true},
		{CheckRuntime, "runc version 1.3.7-0ubuntu1~24.04.1", true},
		{CheckRuntime, "runc version 1.3.7+ds1", true},
		{CheckRuntime, "runc version 1.3.7~ds1", true},
		{CheckRuntime, "runc version 1.3.6-0ubuntu9", false},
		{CheckRuntime, "runc version 1.2.9", false},
		{CheckRuntime, "runc version 1.6.0-rc.1", false},
		{CheckRuntime, "runc version 1.6.0-rc.1+dev", false},
		{CheckRuntime, "runc version 1.6.0-rc.2", true},
		{CheckRuntime, "runc version 1.6.0", true},
		{CheckRuntime, "runc version 1.7.1", true},
		{CheckRuntime, "runc version 2.0.0", true},
		{CheckRuntime, "runc version 0.9.9", false},
		{CheckRuntime, "crun version 1.31\ncommit: abc\nspec: 1.0.0", true},
		{CheckRuntime, "crun version 1.31.1", true},
		{CheckRuntime, "crun version 1.30", false},
		{CheckRuntime, "crun version 2.0", true},
		{CheckRuntime, "youki version 1.5.3", false},
		{CheckRuntime, "runc version unknown", false},
		{CheckRuntime, "runc version unknown\nspec: 1.5.3", false},
		{CheckRuntime, "runc version unknown 1.5.3", false},
		{CheckRuntime, "CRIU version 4.3.1", false},
		{CheckRuntime, "", false},
		{CheckCRIU, "Version: 4.3.1\nGitID: v4.3.1\n", true},
		{CheckCRIU, "Version: 4.3\nGitID: v4.3", false},
		{CheckCRIU, "Version: 4.2", false},
		{CheckCRIU, "Version: 4.4", true},
		{CheckCRIU, "Version: 5.0.2", true},
		{CheckCRIU, "Version: 3.17.1", false},
		{CheckCRIU, "criu: not found", false},
		{CheckCRIU, "GitID: v4.3.1", false},
	} {
		if err := tc.check(tc.output); (err == nil) != tc.safe {
			t.Errorf("%q: %v, safe: %v", tc.output, err, tc.safe)
		}
	}
}
