# Sourced by the build.sh of daemons/, docker/, kubernetes/ and tools/, whose argument is OUTDIR. It
# sets $here, $out and $GO.
set -eu

if [ $# -ne 1 ]; then
	echo "usage: $0 OUTDIR" >&2
	exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
GO=${GO:-go}

# The modules are built as pinned, whatever the caller's environment says.
export GOWORK=off GOFLAGS=-mod=readonly

# fresh STAMP [SOURCE...]: was the file STAMP written for the module in the working directory, with
# these sources, this build.sh and this compiler? The recipe's key is left in $key.
fresh() {
	stamp=$1
	shift
	key=$({ cat go.mod go.sum "$@" "$here/build.sh"; "$GO" version; "$GO" env GOARCH CC; } | sha256sum | cut -d ' ' -f 1)
	[ "$(cat "$stamp" 2>/dev/null)" = "$key" ]
}
