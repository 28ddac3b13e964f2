#!/usr/bin/env bash
# Writes VERSION-MODE.yaml beside this file: what NVIDIA's nvidia-ctk of each version makes of a
# simulated host, in each of its modes. Run by hand as root, with the Go module proxy. Numbers of nodes
# are left out; ROOT, DEVROOT, TRIPLE and VERSION stand for the host's. Not here: the mode wsl, which
# needs Windows' libdxcore.so, and MIG devices, which it looks up in the real /proc. 1.18.2 has no mode
# nvswitch, and its mofed looks for the nodes below --driver-root only.
#
# Last run: 2026-11-28.
set -euo pipefail
versions=(1.18.2 1.19.1 1.20.2)
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$here"
# host NAME ARGUMENTS: makes a simulated host in $dir/NAME.
host() {
	go run github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver -dir "$dir/$1" "${@:2}" > "$dir/$1.toml"
}
host gpus -gpus 4 -others
host tegra -gpus 1 -tegra
# key HOST KEY: a path in that host's configuration.
key() { sed -n "s/^$2 = \"\(.*\)\"/\1/p" "$dir/$1.toml"; }
# generate VERSION HOST NAME ARGUMENTS
generate() {
	local root devroot lib name="$here/$1-$3.yaml"
	root=$(key "$2" driver-root) devroot=$(key "$2" dev-root)
	lib=$(dirname "$(find "$root/usr/lib" -name 'libcuda.so.*' | sort | head -n 1)")
	LD_LIBRARY_PATH=$lib NVIDIA_SIM_DEV=$devroot/dev "$dir/$1/nvidia-ctk" --quiet cdi generate --driver-root "$root" --dev-root "$devroot" \
		--nvidia-cdi-hook-path /usr/bin/nvidia-cdi-hook "${@:4}" > "$dir/out" 2> "$dir/err" || { echo "$1 $3: $(tail -n 1 "$dir/err")"; rm -f "$name"; return; }
	sed -E "/^ +(major|minor): /d; s#$devroot#DEVROOT#g; s#$root#ROOT#g; s#$(uname -m)-linux-gnu#TRIPLE#g; s#580\.159\.04#VERSION#g" "$dir/out" > "$name"
}
for version in "${versions[@]}"; do
	mkdir "$dir/$version"
	(
		cd "$dir/$version"
		printf 'module peer\n\ngo 1.26\n\ntool github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk\n' > go.mod
		export GOFLAGS=-mod=mod
		go get "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk@v$version" 2> /dev/null
		go build -ldflags -extldflags=-Wl,-z,lazy -o nvidia-ctk github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk
	)
	generate "$version" gpus nvml --mode nvml
	generate "$version" gpus management --mode management --class management
	for class in gds gdrcopy mofed nvswitch; do
		generate "$version" gpus "$class" --mode "$class" --class "$class"
	done
	generate "$version" gpus imex-channel --mode imex --class imex-channel
	lists=$(key tegra driver-root)/etc/nvidia-container-runtime/host-files-for-container.d
	generate "$version" tegra csv --mode csv --csv.file "$lists/devices.csv" --csv.file "$lists/drivers.csv"
done
