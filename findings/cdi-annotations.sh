#!/usr/bin/env bash
# tags.cncf.io/container-device-interface v1.1.2: ParseAnnotations returns the devices of several
# annotations in an order that changes from call to call, because it ranges over the map. A runtime
# that injects them in that order edits the same container differently each time: later edits of an
# environment variable win.
#
# Expected before the first run: the order of the sorted keys.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
cat > go.mod <<'MOD'
module finding

go 1.24
MOD
cat > main.go <<'GO'
package main

import (
	"fmt"
	"os"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	annotations := map[string]string{
		"cdi.k8s.io/a": "example.com/device=a",
		"cdi.k8s.io/b": "example.com/device=b",
		"cdi.k8s.io/c": "example.com/device=c",
	}
	orders := map[string]int{}
	for range 1000 {
		_, devices, err := cdi.ParseAnnotations(annotations)
		if err != nil {
			panic(err)
		}
		orders[strings.Join(devices, " ")]++
	}
	fmt.Printf("%d orders of three devices in 1,000 calls\n", len(orders))
	if len(orders) == 1 {
		os.Exit(1)
	}
}
GO
GOFLAGS=-mod=mod go get tags.cncf.io/container-device-interface@v1.1.2 2>/dev/null
GOFLAGS=-mod=mod go run .
