package driver

import "github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"

// LoaderDirs returns the directories that the loader of an image searches without a cache: Debian's
// and those of other distributions. For 32-bit libraries only Debian's directory is unambiguous.
func LoaderDirs(bits int) []string {
	if bits == 32 {
		return []string{"/usr/lib/" + ldcache.ABI32.Triple}
	}
	return []string{"/usr/lib/" + ldcache.ABI64.Triple, "/usr/lib64"}
}

// libraryDirs returns the places that are searched after ld.so.cache and the configuration.
func libraryDirs() []string {
	triple, triple32 := ldcache.ABI64.Triple, ldcache.ABI32.Triple
	return []string{
		"/usr/lib/" + triple,
		"/usr/lib/" + triple + "/nvidia/current", // Debian's alternatives
		"/usr/lib64",
		"/usr/lib64/nvidia/current",
		"/lib64",
		"/lib/" + triple,
		"/lib/" + triple + "/nvidia/current",
		"/usr/lib",
		"/usr/lib32",
		"/usr/lib/" + triple32,
		"/usr/lib/" + triple32 + "/nvidia/current",
		"/usr/local/nvidia/lib64",
		"/usr/local/nvidia/lib",
		"/home/kubernetes/bin/nvidia/lib64", // Container-Optimized OS in GKE
		"/var/lib/nvidia/lib64",             // Container-Optimized OS elsewhere (cos-gpu-installer)
		"/run/opengl-driver/lib",            // NixOS
		"/run/opengl-driver-32/lib",
		// Talos has no glibc: an extension brings one, and the driver is installed to that
		// extension's prefix or to /usr/local (siderolabs/extensions, nvidia-gpu).
		"/usr/local/glibc/usr/lib",
		"/usr/local/glibc/usr/lib64",
		"/usr/local/lib",
		"/usr/local/lib64",
		"/usr/lib/nvidia/tesla",         // Bottlerocket
		"/opt/nvidia/current/usr/lib64", // Flatcar's sysext
		"/opt/nvidia/lib64",             // Clear Linux
	}
}

// binaryDirs are searched for programs after the directories beside the libraries. Debian has the
// server of MPS in /usr/sbin, Bottlerocket all of them in the last.
var binaryDirs = []string{"/usr/bin", "/usr/local/nvidia/bin", "/opt/bin", "/run/current-system/sw/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/usr/libexec/nvidia/tesla/bin"}

// dataDirs are searched for the files of dataKinds. The first place wins: /etc belongs to the
// administrator.
var dataDirs = []string{"/etc", "/usr/local/share", "/usr/share", "/run/opengl-driver/etc", "/run/opengl-driver/share", "/usr/local/glibc/etc"}

// xorgDirs hold modules of the X server: where distributions, NVIDIA's installer and Debian's
// alternatives put them.
var xorgDirs = []string{
	"/usr/lib/" + ldcache.ABI64.Triple + "/nvidia/xorg", "/usr/lib64/nvidia/xorg", "/usr/lib/nvidia/xorg",
	"/usr/lib/xorg/modules/drivers", "/usr/lib/xorg/modules/extensions",
	"/usr/lib/xorg/modules/updates/drivers", "/usr/lib/xorg/modules/updates/extensions",
	"/usr/lib64/xorg/modules/drivers", "/usr/lib64/xorg/modules/extensions",
	"/usr/lib64/xorg/modules/updates/drivers", "/usr/lib64/xorg/modules/updates/extensions",
	"/usr/lib/nvidia/current",
}
