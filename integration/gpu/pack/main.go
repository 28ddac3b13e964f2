package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/gpu"
)

func main() {
	out := flag.String("out", "", "`DIR` to write to; made if it is not there")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := gpu.WriteParts(*out); err != nil {
		fmt.Fprintf(os.Stderr, "pack: %v\n", err)
		os.Exit(1)
	}
}
