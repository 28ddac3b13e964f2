// Package gpu holds the acceptance tests that need real NVIDIA GPUs: `make test-gpu`. They use the
// host's own driver and an image assembled from the host's own programs, so that nothing is
// fetched. On a host without a driver they say so and fail; they are not part of `make test`.
//
// The tests of graphics and OpenCL need the vendor-neutral loaders of these (Debian:
// libegl1 libvulkan1 ocl-icd-libopencl1 libx11-6 libxext6), from this host or, where
// they are not installed, from the archive that its apt uses.
//
// A GPU host without Go, compiler, loaders or network gets what another host of the
// same architecture, with a C library that is not newer, has made:
//
//	make build tools
//	go run ./integration/gpu/pack -out parts
//	CGO_ENABLED=0 go test -c -tags gpu -o gpu.test ./integration/gpu
//
// and there, as root:
//
//	NVIDIA_SHIM_BIN=bin NVIDIA_SHIM_GPU_PROGRAMS=parts/programs \
//	NVIDIA_SHIM_GPU_IMAGES=parts/images ./gpu.test -test.v
package gpu
