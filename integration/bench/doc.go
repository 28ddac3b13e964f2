// Command bench measures what the shim costs beside containerd's own
// containerd-shim-runc-v2, and writes docs/benchmarks.md.
//
//	go run ./integration/bench                      # a simulated driver with 8 GPUs
//	go run ./integration/bench -n 5 -only "no GPU"  # a quick look, nothing is written
//	go run ./integration/bench -real -json r.json   # the driver of this host
//	go run ./integration/bench -before FILE         # beside another build of the shim
//	go run ./integration/bench -render r.json       # the page from earlier samples
//
// In: the binaries of `make build tools`, the images of integration/images, the
// simulated driver of integration/simdriver or the host's own. Out: the generated
// parts of the page, between markers, so that the text around them stays; with
// -json also every sample.
//
// All runtimes are measured in one run under one containerd of the benchmark's own: each round
// takes every case once, the cases in random order and the runtimes of a case in random order next
// to each other. A ratio is the median over the rounds of the ratios within a round, so that a host
// that becomes slower meanwhile favours none. With -before each of the two builds has a containerd
// and a state directory of its own.
//
// On a GPU host neither Go, a compiler nor a network is needed:
//
//	CGO_ENABLED=0 go build -o bench ./integration/bench && ./bench -prepare DIR
//	./bench -real -bin BIN -images DIR -json r.json  # there
//
// It must never be run by `go test`, and leaves the host as it was.
package main
