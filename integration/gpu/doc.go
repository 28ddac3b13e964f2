// Package gpu holds the acceptance tests that need real NVIDIA GPUs: `make
// test-gpu`. They use the host's own driver and an image assembled from the host's
// own programs, so that nothing is fetched. On a host without a driver they say so
// and fail; they are no part of `make test`.
package gpu
