#!/bin/sh
# Builds what the integration tests run against: containerd, ctr,
# containerd-shim-runc-v2 and runc, at the versions that go.mod beside this
# script pins, with the build tags that the stock packages use. runc-1.1 and
# runc-1.2 are old ones and runc-1.6 is the next, each with a go.mod of its own.
# Usage: build.sh OUTDIR
#
# What is up to date is skipped: a stamp file beside each binary holds the recipe's key.
. "$(dirname "$0")/recipe.sh"
cd "$here"

containerd_version=$("$GO" list -m -f '{{.Version}}' github.com/containerd/containerd/v2)
runc_version=$("$GO" list -m -f '{{.Version}}' github.com/opencontainers/runc)

# put NAME: move the finished binary into place, then say that it is fresh.
put() {
	rm -f "$out/.$1.stamp"
	mv -f "$out/.$1.new" "$out/$1"
	echo "$key" >"$out/.$1.stamp"
}

# build_containerd NAME TAGS: a command of containerd, static and without cgo.
build_containerd() {
	if fresh "$out/.$1.stamp" && [ -x "$out/$1" ]; then
		return
	fi
	echo "building $1 $containerd_version"
	CGO_ENABLED=0 "$GO" build -trimpath -tags "$2" \
		-ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$containerd_version" \
		-o "$out/.$1.new" "github.com/containerd/containerd/v2/cmd/$1"
	put "$1"
}

build_containerd containerd "no_btrfs no_zfs no_devmapper"
build_containerd ctr "no_btrfs no_zfs no_devmapper"
# containerd's own Makefile builds the shim with this tag.
build_containerd containerd-shim-runc-v2 "no_grpc"

# build_runc NAME LDFLAGS: the runc of the module in the working directory.
build_runc() {
	if fresh "$out/.$1.stamp" && [ -x "$out/$1" ]; then
		return
	fi
	if ! pkg-config --exists libseccomp 2>/dev/null; then
		echo "build.sh: runc needs libseccomp's headers and pkg-config; run $here/apt.sh" >&2
		exit 1
	fi
	echo "building $1 $runc_version"
	CGO_ENABLED=1 "$GO" build -trimpath -tags "seccomp netgo osusergo" \
		-ldflags "-s -w -extldflags -static $2" \
		-o "$out/.$1.new" github.com/opencontainers/runc
	put "$1"
}

# It embeds its own VERSION file, so no version is set here.
build_runc runc ""
for other in runc-1.1 runc-1.2 runc-1.6; do
	cd "$here/$other"
	runc_version=$("$GO" list -m -f '{{.Version}}' github.com/opencontainers/runc)
	build_runc "$other" "-X main.version=${runc_version#v}"
done
