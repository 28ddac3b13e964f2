package driver

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
)

// notGiven are the files of Debian's packages that no container gets: units, documents, scripts and
// daemons of the host, and what is not the driver's.
var notGiven = []string{
	"etc/nvidia/current/nvidia-drm-outputclass.conf", // Debian's own: xorg.conf.d has a link to it only with glx-alternative-nvidia
	"usr/bin/nvidia-sleep.sh",
	"usr/lib/nvidia/current/nvidia-bug-report.sh",
	"usr/lib/nvidia/current/nvidia-smi.1.gz",
	"usr/lib/nvidia/current/nvidia.ids",
	"usr/lib/x86_64-linux-gnu/libOpenCL.so.1.0.0", // the loader of OpenCL, which images have themselves
	"usr/sbin/nvidia-powerd",
	"usr/share/nvidia/nvidia-application-profiles-VERSION-key-documentation",
	"usr/share/nvidia/nvidia-application-profiles-VERSION-rc",
}

// The driver of Debian's packages: the names are real (testdata/debian.sh), the contents are not.
// Everything is given but notGiven, and nothing is missing. Other distributions' packages are NOT TESTED:
// this machine's apt serves Debian's only.
func TestDebiansPackages(t *testing.T) {
	wide, narrow := ldcache.ABI64, ldcache.ABI32
	t.Cleanup(func() { ldcache.ABI64, ldcache.ABI32 = wide, narrow })
	ldcache.ABI64, ldcache.ABI32 = ldcache.ABIs("amd64")
	for _, suite := range []string{"bookworm", "trixie"} {
		t.Run(suite, func(t *testing.T) {
			r := newRoot(t)
			version, names := r.Unpack("testdata/debian-"+suite+".txt", ldcache.ABI64.Machine)
			files, err := Discover(r.host, version)
			r.Check(err)
			given := map[string]bool{}
			add := func(path string, capabilities []string) {
				given[strings.TrimPrefix(path, r.Dir+"/")] = len(capabilities) > 0
			}
			for _, l := range files.Libraries {
				add(l.Path, l.Capabilities)
			}
			for _, b := range files.Binaries {
				add(b.Path, b.Capabilities)
			}
			for _, d := range files.Data {
				add(d.Path, d.Capabilities)
			}
			names = slices.DeleteFunc(names, func(name string) bool { return given[name] })
			for i, name := range names {
				names[i] = strings.ReplaceAll(name, version, "VERSION")
			}
			if !slices.Equal(names, notGiven) {
				t.Errorf("not given:\n%s\nwant:\n%s", strings.Join(names, "\n"), strings.Join(notGiven, "\n"))
			}
			if len(files.Missing)+len(files.Refused)+len(files.LeftOut)+len(files.Problems) != 0 {
				t.Errorf("missing %q, refused %q, left out %q, %q", files.Missing, files.Refused, files.LeftOut, files.Problems)
			}
		})
	}
}
