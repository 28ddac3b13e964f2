// Package sim makes a simulated NVIDIA driver below one directory: what a host
// with 1 to 16 H200 GPUs has, for a host that has none.
//
// [Create] writes
//
//	root/        the driver root: real ELF libraries and programs, SONAME links,
//	             ld.so.cache, data files and firmware, in one of six layouts
//	devroot/dev  the device nodes, made with mknod
//	proc/        devices, driver/nvidia, driver/nvidia-caps as the kernel modules
//	             print them
//	sys/         the PCI devices, their DRM nodes, module/nvidia
//	config.toml  a configuration of the shim that points at all of this
//
// The libraries are compiled by gcc from the C files in csrc. libcuda.so.1 and
// libnvidia-ml.so.1 answer the calls that list devices; they count the GPUs whose
// nodes the calling process may open, so a program in a container sees what its
// device cgroup and its /dev allow: without a driver behind the node the kernel
// says ENXIO to who may and EPERM to who may not. nvidia-smi works on top of
// them. The other libraries can be found and loaded and do nothing.
//
//	d, err := sim.Create(ctx, sim.Options{Dir: dir, GPUs: 8})
//	if err != nil { … }
//	defer d.Remove()
//	daemon.Env = append(daemon.Env, "NVIDIA_SHIM_CONFIG="+d.ConfigPath)
//
// [Driver.Upgrade] installs another driver version, [Driver.Reconfigure] replaces the
// MIG devices.
//
// From version 615 on, NVML has memory limits of cgroups, real ones of this host: [Driver.LimitMemory]
// chooses the backend, [Driver.CgroupLimits] shows what is set. They are not enforced.
//
// Things differ where real hosts differ: with three GPUs or more the minor number
// of a GPU is not its index; the layouts put their files where Debian, RHEL, GKE,
// Debian's alternatives, Talos and NixOS do.
//
// The package needs root (mknod, ldconfig -r), gcc and ldconfig. It never issues
// an ioctl, and refuses to make nodes with a major number that belongs to a
// driver of this host. It runs no CUDA code and simulates no modules of the
// kernel: nothing below the host's own /dev, /proc or /sys changes.
package sim
