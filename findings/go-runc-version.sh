#!/usr/bin/env bash
# github.com/containerd/go-runc v1.2.1 with crun 1.8.1 (Debian 12): Version reports no error, and
# neither the version nor the specification, although crun prints both as runc does, with its own
# name. A caller that compares versions must treat "" as unknown, not as old.
#
# Expected before the first run: an error.
set -euo pipefail
dir=$(mktemp -d)
[ -d /run/crun ] && had=yes || had=no
# crun makes /run/crun even for --version.
trap 'chmod -R u+w "$dir"; rm -rf "$dir"; [ $had = yes ] || rmdir /run/crun 2>/dev/null || true' EXIT
cd "$dir"
apt-get download -q crun=1.8.1-1+deb12u1 libyajl2=2.1.0-3+deb12u2 >/dev/null 2>&1
for package in ./*.deb; do dpkg-deb -x "$package" root; done
cat > crun <<SH
#!/bin/sh
LD_LIBRARY_PATH=$(dirname "$(find "$dir/root" -name 'libyajl.so.2' | head -n 1)") exec $dir/root/usr/bin/crun "\$@"
SH
chmod +x crun
cat > go.mod <<'MOD'
module finding

go 1.24
MOD
cat > main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/go-runc"
)

func main() {
	v, err := (&runc.Runc{Command: os.Args[1]}).Version(context.Background())
	fmt.Printf("version %q, spec %q, error %v\n", v.Runc, v.Spec, err)
	if v.Runc != "" || v.Spec != "" || err != nil {
		os.Exit(1)
	}
}
GO
./crun --version | head -n 1
GOFLAGS=-mod=mod go get github.com/containerd/go-runc@v1.2.1 2>/dev/null
GOFLAGS=-mod=mod go run . "$dir/crun"
