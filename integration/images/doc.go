// Package images assembles the container images of the integration tests, on
// this host and without a registry.
//
// In: a name of the list below (Names), or a table of files made by the test. Out:
// the path of an OCI image layout as a tar, which `ctr images import` takes; its
// reference is Ref(name). The same input gives the same bytes.
//
//	tar, err := images.Build("busybox")
//
//	busybox        static busybox with its applet links; no libc
//	debian12       Debian 12 by debootstrap, with gcc, python3 and /opt/test/libfoo.deb
//	glibc-nocache  loader, libc and programs only; no ld.so.cache, no ldconfig
//	glibc-hwcaps   a cache with glibc-hwcaps entries, among them a hostile libcuda.so.1
//	usrlib64       libraries in /usr/lib64 as on RHEL; no /etc/debian_version
//	musl           the musl loader and musl programs
//	large          5,000 libraries in a real ld.so.cache
//	loaders        Debian's loaders of EGL, Vulkan, OpenCL, VDPAU and GBM drivers, and
//	               on x86-64 a 32-bit C library; /test/loaders, /test/dlopen32
//	compat         a CUDA forward compatibility library with a note that names branch 580
//	compat-nonote  the same without a note
//
// Image with Write makes anything else, for example hostile images:
//
//	images.Image{Name: images.Ref("hostile"), Layers: []images.Layer{{Files: []images.File{
//		images.Symlink("etc/ld.so.cache", "/proc/1/root/etc/shadow"),
//		images.FIFO("usr/lib/libc.so.6"),
//	}}}}.Write(path)
//
// All except debian12 have busybox as /bin/sh. The test programs are in /test: opendev, mkdev, hear
// (static, in every image), dlopen and cucount (dynamic, for the image's libc; not in busybox).
// Each prints one line for each item.
//
// Built images are kept in a cache directory under a name made from everything
// that went into them; removing the directory is always safe.
//
// It must never fetch from a registry, run a program of an image other than
// debootstrap's own, or write outside its cache directory.
package images
