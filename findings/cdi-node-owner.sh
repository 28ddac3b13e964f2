#!/usr/bin/env bash
# tags.cncf.io/container-device-interface v1.1.2: a device node without uid and gid in a CDI file, as
# NVIDIA's tools write it, does not keep the group of the host's node. A container that runs as a
# user gets the node with that user as its owner and that user's primary group, so a device that the
# host gives to a group (render, video) then belongs to the user that the image names, and additional
# groups of the container that would open it on the host do not.
#
# Expected before the first run: owner and group of the host's node, as type, major and minor, which
# the library does read from it.
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

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

func main() {
	const node = "/dev/tty" // which is root's, and often of a group
	var st unix.Stat_t
	if err := unix.Stat(node, &st); err != nil {
		panic(err)
	}
	spec := &oci.Spec{Process: &oci.Process{User: oci.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{st.Gid}}}, Linux: &oci.Linux{}}
	edits := cdi.ContainerEdits{ContainerEdits: &specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: node}}}}
	if err := edits.Apply(spec); err != nil {
		panic(err)
	}
	d := spec.Linux.Devices[0]
	fmt.Printf("host %d:%d %d:%d, container %d:%d ", st.Uid, st.Gid, unix.Major(st.Rdev), unix.Minor(st.Rdev), d.Major, d.Minor)
	if d.UID == nil || d.GID == nil {
		fmt.Println("without an owner")
		os.Exit(1)
	}
	fmt.Printf("%d:%d\n", *d.UID, *d.GID)
	if *d.UID != 1000 || *d.GID != 1000 {
		os.Exit(1)
	}
}
GO
GOFLAGS=-mod=mod go get tags.cncf.io/container-device-interface@v1.1.2 github.com/opencontainers/runtime-spec@v1.3.0 golang.org/x/sys@v0.43.0 2>/dev/null
GOFLAGS=-mod=mod go run .
