#!/bin/sh
# Builds dockerd, docker-proxy, the docker command and its plugins buildx and
# compose, at the versions that the go.mod of engine/, buildx/ and compose/ pin.
# Usage: build.sh OUTDIR
#
# What is up to date is skipped: a stamp file beside each program holds the recipe's key.
. "$(dirname "$0")/../tools/recipe.sh"

# build DIR NAME PACKAGE LDFLAGS: a program of the module in DIR, static and without cgo.
build() {
	cd "$here/$1"
	if fresh "$out/.$2.stamp" && [ -x "$out/$2" ]; then
		return
	fi
	echo "building $2"
	rm -f "$out/.$2.stamp"
	# docker/cli has no go.mod, and as a dependency would be compiled as Go 1.16.
	CGO_ENABLED=0 "$GO" build -trimpath -gcflags "github.com/docker/cli/...=-lang=go1.26" \
		-ldflags "-s -w $4" -o "$out/.$2.new" "$3"
	mv -f "$out/.$2.new" "$out/$2"
	echo "$key" >"$out/.$2.stamp"
}

cd "$here/engine"
version=$("$GO" list -m -f '{{.Version}}' github.com/docker/cli)
version=${version#v}
version=${version%+incompatible}
# The module of Engine 29 has a version of its own; the command's is the release's.
build engine dockerd github.com/moby/moby/v2/cmd/dockerd "-X github.com/moby/moby/v2/dockerversion.Version=$version"
build engine docker-proxy github.com/moby/moby/v2/cmd/docker-proxy ""
build engine docker github.com/docker/cli/cmd/docker "-X github.com/docker/cli/cli/version.Version=$version"
build buildx docker-buildx github.com/docker/buildx/cmd/buildx ""
build compose docker-compose github.com/docker/compose/v2/cmd ""
