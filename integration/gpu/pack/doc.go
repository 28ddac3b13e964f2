// Command pack makes the parts of the GPU acceptance tests that need a compiler and
// an archive of packages, for a GPU host that has neither:
//
//	go run ./integration/gpu/pack -out DIR
//
// DIR/programs is for NVIDIA_SHIM_GPU_PROGRAMS there and DIR/images for
// NVIDIA_SHIM_GPU_IMAGES.
package main
