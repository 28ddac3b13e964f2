#!/bin/sh
# Installs the Debian packages that building the tools and running the tests
# need, and only those that are missing. Usage: apt.sh [--check]
#
# With --check nothing is installed: the missing packages are printed and the
# exit status is 1 when there are any.
set -eu

# What each package is for:
#   gcc libc6-dev binutils       C test programs, the simulated driver, runc (cgo)
#   libseccomp-dev pkg-config    runc with seccomp
#   libc-bin                     a real ldconfig, for the images' ld.so.cache
#   busybox-static               /bin/sh and friends in the small images
#   musl musl-tools              the musl image and its programs
#   debootstrap dpkg             the Debian image and the package inside it
#   debian-archive-keyring       the key that debootstrap checks against
#   strace                       the trace of what the shim executes
#   mount                        mount and umount, for the private cgroup2 tree
#   fish zsh                     shells that the tool's completion is tried in
#   man-db                       man reads the manual pages
#   patch                        the differences that the tool prints are patches
#   systemd                      systemd-analyze reads the unit of prepare
#   rpm                          rpm and rpm2archive look into the rpm
#   chromium-headless-shell      the page of serve
#   gcc-aarch64-linux-gnu libc6-dev-arm64-cross   packages for arm64, on x86-64
#   ca-certificates              TLS for the Go module proxy and Debian's mirror
packages="
gcc libc6-dev binutils
libseccomp-dev pkg-config
libc-bin
busybox-static
musl musl-tools
debootstrap dpkg debian-archive-keyring
strace
mount
fish zsh man-db patch systemd rpm
chromium-headless-shell
ca-certificates
"

[ "$(uname -m)" != x86_64 ] || packages="$packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross"

missing=
for p in $packages; do
	status=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)
	if [ "$status" != installed ]; then
		missing="$missing $p"
	fi
done
missing=${missing# }
if [ -z "$missing" ]; then
	# Tests download packages into their images: that needs the package lists.
	if [ "${1:-}" != --check ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 &&
		[ -z "$(apt-get indextargets --format '$(FILENAME)' 'Created-By: Packages' | while read -r f; do ls "$f"* 2>/dev/null; done)" ]; then
		apt-get update
	fi
	exit 0
fi
if [ "${1:-}" = --check ]; then
	echo "apt.sh: missing Debian packages: $missing" >&2
	exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
	echo "apt.sh: missing: $missing (Debian's names); there is no apt-get here, install them with this system's package manager" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "apt.sh: missing: $missing; not root, so run: sudo apt-get install --no-install-recommends $missing" >&2
	exit 1
fi
echo "apt.sh: installing: $missing"
export DEBIAN_FRONTEND=noninteractive
# The package lists may be old or empty; try with what there is first.
# shellcheck disable=SC2086 # one word a package
if ! apt-get install -y --no-install-recommends $missing; then
	apt-get update
	apt-get install -y --no-install-recommends $missing
fi
