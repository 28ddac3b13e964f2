package sim

import "runtime"

// Layout is a way to lay out a driver's files.
type Layout string

const (
	// Debian has the libraries in the multiarch directory, as Ubuntu's packages
	// and NVIDIA's installer on Debian have.
	Debian Layout = "debian"
	// RHEL has them in /usr/lib64 and the 32-bit ones in /usr/lib.
	RHEL Layout = "rhel"
	// GKE has everything below /usr/local/nvidia, found by ld.so.cache and PATH
	// only, a second libcuda in /lib, and no DRM nodes.
	GKE Layout = "gke"
	// NvidiaCurrent is Debian's own packaging: the files are in nvidia/current and
	// reached by absolute links through /etc/alternatives.
	NvidiaCurrent Layout = "nvidia-current"
	// Talos has the libraries in the prefix of its glibc extension, where no
	// ld.so.cache of the host lists them, and the programs in /usr/local/bin.
	Talos Layout = "talos"
	// NixOS has everything in its store, reached by absolute links from /run.
	NixOS Layout = "nixos"
)

// Layouts are all of them.
var Layouts = []Layout{Debian, RHEL, GKE, NvidiaCurrent, Talos, NixOS}

func (l Layout) hasDRM() bool { return l != GKE }

// LibDir is where the libraries of the driver are, relative to the driver root.
func (l Layout) LibDir() string { return layouts[l].lib }

// Lib32Dir is where its 32-bit libraries are; "" where the architecture has none.
func (l Layout) Lib32Dir() string {
	if runtime.GOARCH != "amd64" {
		return ""
	}
	return layouts[l].lib32
}

// BinDir is where its programs are; with NvidiaCurrent it holds links to some.
func (l Layout) BinDir() string { return layouts[l].bin }

// places are the directories of a layout, relative to the driver root.
type places struct {
	lib, lib32, bin, share, firmware string
	// libLinks and lib32Links are where alternatives links to the libraries go.
	libLinks, lib32Links string
	// binTargets is where the programs are that bin has alternatives links to.
	binTargets string
	vdpau      string // sub-directory of lib for VDPAU drivers
	vulkan     string // of the ICD file
	// xorg holds the X driver, and xorgExtensions the GLX extension; "" for none.
	xorg, xorgExtensions string
	// secondCUDA is a directory with a further copy of libcuda.
	secondCUDA string
	// firmwareParameter is the value of firmware_class.path.
	firmwareParameter string
	ldConf            map[string]string // files in etc/ld.so.conf.d
	links             map[string]string // further links: name to target
}

// multiarch is Debian's name for this architecture.
var multiarch = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]

// machine is the kernel's name for it.
var machine = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]

// debianConf are the loader's directories on Debian and Ubuntu.
var debianConf = map[string]string{
	multiarch + ".conf":   "/usr/local/lib/" + multiarch + "\n/lib/" + multiarch + "\n/usr/lib/" + multiarch + "\n",
	"i386-linux-gnu.conf": "/usr/local/lib/i386-linux-gnu\n/lib/i386-linux-gnu\n/usr/lib/i386-linux-gnu\n",
}

var layouts = map[Layout]places{
	Debian: {
		lib: "usr/lib/" + multiarch, lib32: "usr/lib/i386-linux-gnu", bin: "usr/bin", share: "usr/share",
		firmware: "usr/lib/firmware", vdpau: "vdpau", vulkan: "usr/share/vulkan/icd.d/nvidia_icd.json",
		xorg: "usr/lib/xorg/modules/drivers", xorgExtensions: "usr/lib/xorg/modules/extensions",
		ldConf: debianConf,
	},
	RHEL: {
		lib: "usr/lib64", lib32: "usr/lib", bin: "usr/bin", share: "usr/share",
		firmware: "usr/lib/firmware", vdpau: "vdpau", vulkan: "usr/share/vulkan/icd.d/nvidia_icd." + machine + ".json",
		xorg: "usr/lib64/xorg/modules/drivers", xorgExtensions: "usr/lib64/xorg/modules/extensions",
		// RHEL's ldconfig knows /lib64 by itself, that of this host may not.
		ldConf: map[string]string{"lib64.conf": "/lib64\n"},
	},
	GKE: {
		lib: "usr/local/nvidia/lib64", lib32: "usr/local/nvidia/lib", bin: "usr/local/nvidia/bin", share: "usr/local/nvidia/share",
		firmware: "usr/local/nvidia/firmware", vdpau: "vdpau", vulkan: "usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json",
		secondCUDA: "usr/lib", firmwareParameter: "/usr/local/nvidia/firmware",
		ldConf: map[string]string{"nvidia.conf": "/usr/local/nvidia/lib64\n/usr/local/nvidia/lib\n"},
	},
	NvidiaCurrent: {
		lib: "usr/lib/" + multiarch + "/nvidia/current", lib32: "usr/lib/i386-linux-gnu/nvidia/current",
		libLinks: "usr/lib/" + multiarch, lib32Links: "usr/lib/i386-linux-gnu",
		bin: "usr/bin", binTargets: "usr/lib/nvidia/current", share: "usr/share",
		firmware: "usr/lib/firmware", vulkan: "etc/vulkan/icd.d/nvidia_icd.json",
		xorg: "usr/lib/nvidia/current", xorgExtensions: "usr/lib/nvidia/current",
		ldConf: debianConf,
	},
	Talos: {
		lib: "usr/local/glibc/usr/lib", bin: "usr/local/bin", share: "usr/local/glibc/usr/share",
		firmware: "usr/lib/firmware", vdpau: "vdpau", vulkan: "usr/local/glibc/etc/vulkan/icd.d/nvidia_icd.json",
		xorg: "usr/local/glibc/usr/lib/xorg/modules/drivers", xorgExtensions: "usr/local/glibc/usr/lib/xorg/modules/extensions",
	},
	NixOS: {
		lib: nixDriver + "/lib", bin: nixPrograms + "/bin", share: nixDriver + "/share",
		firmware: nixDriver + "/lib/firmware", vdpau: "vdpau", vulkan: nixDriver + "/share/vulkan/icd.d/nvidia_icd." + machine + ".json",
		xorg: nixDriver + "/lib/xorg/modules/drivers", xorgExtensions: nixDriver + "/lib/xorg/modules/extensions",
		links: map[string]string{
			"run/opengl-driver": "/nix/store/2-graphics-drivers", "nix/store/2-graphics-drivers": "/" + nixDriver,
			"run/current-system": "/nix/store/4-nixos-system", "nix/store/4-nixos-system/sw": "/" + nixPrograms,
		},
	},
}

// Packages in the store of NixOS; the hashes in their names are left out.
const (
	nixDriver   = "nix/store/1-nvidia-x11"
	nixPrograms = "nix/store/3-nvidia-x11-bin"
)
