// Command simdriver makes a simulated NVIDIA driver, for trying the shim on a
// host that has no GPU:
//
//	go run ./integration/simdriver -dir /tmp/gpus -gpus 8
//	go run ./integration/simdriver -dir /tmp/gpus -upgrade 590.48.01
//	go run ./integration/simdriver -dir /tmp/gpus -remove
//
// It prints the configuration of the shim that it wrote to <dir>/config.toml.
// Package sim does the work and says what is simulated.
package main
