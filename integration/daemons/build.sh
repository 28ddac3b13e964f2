#!/bin/sh
# Builds the daemon, the client (ctr) and the stock shim of older containerd
# releases, each at the version that the go.mod of its directory pins:
# OUTDIR/containerd-1.7/containerd and so on. Usage: build.sh OUTDIR
#
# The stock shim belongs to them, because that of 2.4 does not start under a
# daemon before 2.3.
#
# What is up to date is skipped: a stamp file beside the binaries holds the recipe's key.
#
# Debian's own containerd and runc are unpacked, not installed, into
# OUTDIR/debian, where apt-get can download them. Where it cannot, that is said
# here, and again by the tests.
. "$(dirname "$0")/../tools/recipe.sh"

# complete DIR: whether all programs are there.
complete() {
	[ -x "$1/containerd" ] && [ -x "$1/ctr" ] && [ -x "$1/containerd-shim-runc-v2" ]
}

# build NAME MODULE: the programs of the module, static and without cgo.
# CRI stays in: Kubernetes' way in is tested as well.
build() {
	cd "$here/$1"
	if fresh "$out/$1/.stamp" && complete "$out/$1"; then
		return
	fi
	version=$("$GO" list -m -f '{{.Version}}' "$2")
	echo "building containerd, ctr and the stock shim $version"
	mkdir -p "$out/$1"
	rm -f "$out/$1/.stamp"
	for program in containerd ctr containerd-shim-runc-v2; do
		CGO_ENABLED=0 "$GO" build -trimpath -tags "no_btrfs no_zfs no_devmapper no_aufs" \
			-ldflags "-s -w -X $2/version.Version=$version" \
			-o "$out/$1/.$program.new" "$2/cmd/$program"
		mv -f "$out/$1/.$program.new" "$out/$1/$program"
	done
	echo "$key" >"$out/$1/.stamp"
}

build containerd-1.7 github.com/containerd/containerd
build containerd-2.2 github.com/containerd/containerd/v2
build containerd-2.3 github.com/containerd/containerd/v2

if [ -e "$out/debian/.stamp" ] && complete "$out/debian"; then
	exit 0
fi
if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg >/dev/null 2>&1; then
	echo "build.sh: Debian's containerd is left out: there is no apt-get and dpkg here" >&2
	exit 0
fi
work=$(mktemp -d "$out/.debian.XXXXXX")
trap 'rm -rf "$work"' EXIT
# apt's own sandbox user downloads into the directory.
chmod 711 "$work"
mkdir -m 777 "$work/deb"
cd "$work/deb"
if ! apt-get -q download containerd runc; then
	apt-get -q update && apt-get -q download containerd runc || {
		echo "build.sh: Debian's containerd is left out: apt-get cannot download it" >&2
		exit 0
	}
fi
for package in *.deb; do
	dpkg -x "$package" "$work/tree"
done
rm -rf "$out/debian"
mkdir "$out/debian"
mv "$work/tree/usr/bin/containerd" "$work/tree/usr/bin/ctr" "$work/tree/usr/bin/containerd-shim-runc-v2" \
	"$work/tree/usr/sbin/runc" "$out/debian/"
dpkg-deb --show ./*.deb >"$out/debian/.stamp"
