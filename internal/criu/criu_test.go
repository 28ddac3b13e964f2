package criu

import "testing"

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
