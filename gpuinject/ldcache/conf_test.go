package ldcache

import (
	"strings"
	"testing"
)

func TestConfIncludes(t *testing.T) {
	const entry = "/etc/ld.so.conf.d/000-nvidia-shim.conf"
	for conf, want := range map[string]bool{
		"include /etc/ld.so.conf.d/*.conf\n":                true, // Debian
		"include ld.so.conf.d/*.conf":                       true, // Red Hat
		"  include\t/opt/*.conf /etc/ld.so.conf.d/*  # all": true,
		"#include /etc/ld.so.conf.d/*.conf\n":               false,
		"include /etc/ld.so.conf.d/lib*.conf\n":             false,
		"includes /etc/ld.so.conf.d/*.conf\n":               false,
		"/usr/local/lib\n":                                  false,
		"include [\n":                                       false,
		"include\n":                                         false,
		"":                                                  false,
		"/usr/local/lib\ninclude /etc/ld.so.conf.d/000-*.conf\r\n": true,
	} {
		if got := ConfIncludes(conf, entry); got != want {
			t.Errorf("%q: %v", conf, got)
		}
	}
}

func TestIsConfDir(t *testing.T) {
	for dir, want := range map[string]bool{
		"/usr/local/nvidia/lib64": true, "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_1": true,
		"": false, "/": false, "relative": false, "/a b": false, "/a\n/b": false, "/a=libc6": false, "/a:b": false,
		"/x/../y": false, "/x/": false, "/#": false, "/a*": false, "/a\x7f": false, "/" + strings.Repeat("a", maxString): false,
	} {
		if got := IsConfDir(dir); got != want {
			t.Errorf("%.20q: %v", dir, got)
		}
	}
}

func TestAddMuslDirs(t *testing.T) {
	const dir = "/usr/local/nvidia/lib64"
	for before, want := range map[string]string{
		MuslDefault:                 "/lib:/usr/local/lib:/usr/lib\n" + dir + "\n",
		"/lib\n/opt/lib\n":          "/lib\n/opt/lib\n" + dir + "\n",
		"/lib:/opt/lib":             "/lib:/opt/lib\n" + dir + "\n", // a missing line feed is added
		"/lib:" + dir + ":/usr/lib": "/lib:" + dir + ":/usr/lib",    // it is there already
		dir + "/x\n":                dir + "/x\n" + dir + "\n",
		"":                          dir + "\n",            // empty means no paths, and stays so
		"/lib\x00/evil":             "/lib\n" + dir + "\n", // musl does not read what follows a NUL
	} {
		if got := string(AddMuslDirs(before, []string{dir})); got != want {
			t.Errorf("%q: got %q, want %q", before, got, want)
		}
	}
}
