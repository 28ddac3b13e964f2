package criu

import "testing"

func TestVersions(t *testing.T) {
	for _, tc := range []struct {
		check  func(string) error
		output string
		safe   bool
	}{
		{CheckRuntime, "runc version 1.5.3\ncommit: v1.5.3-0-gabc\nspec: 1.3.0\n", true},
		{CheckRuntime, "runc version 1.5.2\nspec: 1.3.0", false},
		{CheckRuntime, "runc version 1.5.3-rc.1", false},
		{CheckRuntime, "runc version 1.5.3~rc1+ds1", false},
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
		{CheckRuntime, "", false},
		{CheckCRIU, "Version: 4.3.1\nGitID: v4.3.1\n", true},
		{CheckCRIU, "Version: 4.3\nGitID: v4.3", false},
		{CheckCRIU, "Version: 4.2", false},
		{CheckCRIU, "Version: 4.4", true},
		{CheckCRIU, "Version: 5.0.2", true},
		{CheckCRIU, "Version: 3.17.1", false},
		{CheckCRIU, "criu: not found", false},
	} {
		if err := tc.check(tc.output); (err == nil) != tc.safe {
			t.Errorf("%q: %v, safe: %v", tc.output, err, tc.safe)
		}
	}
}

func TestIsPlain(t *testing.T) {
	for path, want := range map[string]bool{
		"/usr/local/nvidia": true, "/usr/lib/x86_64-linux-gnu/libcuda.so.1": true, "/a~b@c+d=e,f%g/ü": true,
		"/a]:b": false, "/a[b": false, "/a:b": false, "/a b": false, "/a\nb": false, "/a\"b": false, "/a\\b": false, "/a#b": false, "/a\tb": false, "/a\x7fb": false,
	} {
		if HasSeparator(path) && want {
			t.Errorf("%q has a separator", path)
		}
		if IsPlain(path) != want {
			t.Errorf("%q: %v", path, !want)
		}
	}
}
