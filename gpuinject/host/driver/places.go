package driver

// places are directories of hosts whose system image puts the driver where no
// distribution does.
type places struct {
	// libraries are searched where the known directories have no driver.
	libraries []string
	// binaries and data are searched besides, where a library was found there.
	binaries, data []string
}

// otherPlaces are looked at only where neither ld.so.cache nor libraryDirs has a
// driver: on an ordinary host each of them would be one more stat(2) for each
// container.
var otherPlaces = []places{
	{
		// Talos: its own system has no glibc, so its extension brings one, and the
		// driver is installed to that one's prefix or to /usr/local (siderolabs/extensions,
		// nvidia-gpu: userspace/*/pkg.yaml, nvidia-pkgs/*/pkg.yaml). The linker's cache is
		// in that prefix as well, so the first of the above finds nothing.
		libraries: []string{"/usr/local/glibc/usr/lib", "/usr/local/glibc/usr/lib64", "/usr/local/lib", "/usr/local/lib64"},
		binaries:  []string{"/usr/local/bin"},
		data:      []string{"/usr/local/glibc/etc"},
	},
	{
		// Bottlerocket (bottlerocket-kernel-kit, kmod-*-nvidia.spec). Its ldconfig service
		// lists the directory by its full name, below /<arch>-bottlerocket-linux-gnu.
		libraries: []string{"/usr/lib/nvidia/tesla"},
	},
}

// elsewhere searches otherPlaces where no driver was found so far.
func (s *search) elsewhere() {
	for _, p := range otherPlaces {
		if s.files.has("libcuda.so."+s.files.Version) || s.files.has("libnvidia-ml.so."+s.files.Version) {
			return
		}
		s.lists(p.libraries)
		s.places = p
	}
}
