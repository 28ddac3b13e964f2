//go:build cgo

// Command nvidia-shim-nvml answers the questions of "nvidia-shimctl probe" that need NVML. It is the
// only program that loads a library, and so the only one that needs a C library.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe/server"
)

func main() {
	q, err := probe.ReadQuestions(os.Stdin)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(server.Answer(context.Background(), q))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "nvidia-shim-nvml: only nvidia-shimctl probe runs this program: %v\n", err)
		os.Exit(2)
	}
}
