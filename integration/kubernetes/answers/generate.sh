#!/usr/bin/env bash
# Writes gpuinject/testdata/device-plugin.json: what NVIDIA's k8s-device-plugin answers the kubelet with
# each strategy, one answer a line; and fails if a version answers otherwise than the first. Run by hand
# as root, with the Go module proxy. ROOT, DEVROOT, TRIPLE and VERSION stand for the simulated host's. Not
# here: MPS, which needs the plugin's daemon, and MIG devices.
#
# Last run: 2026-11-28.
set -euo pipefail
versions=(0.17.4 0.18.2 0.19.3)
here=$(cd "$(dirname "$0")" && pwd)
out=$(cd "$here/../../../gpuinject/testdata" && pwd)/device-plugin.json
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
(cd "$here/../../.." && go run ./integration/simdriver -dir "$dir/host" -gpus 4 > "$dir/host.toml")
(cd "$here" && go build -o "$dir/answers" .)
key() { sed -n "s/^$1 = \"\(.*\)\"/\1/p" "$dir/host.toml"; }
root=$(key driver-root) devroot=$(key dev-root)
printf 'version: v1\nsharing:\n  timeSlicing:\n    resources:\n      - {name: nvidia.com/gpu, replicas: 2}\n' > "$dir/shared.yaml"
mkdir "$root/dev"
# answer VERSION ARGUMENTS: in directories of its own for plugins and CDI files, and with the nodes where
# the plugin looks for them.
answer() {
	# shellcheck disable=SC2016
	NVIDIA_DRIVER_ROOT=$root DRIVER_ROOT_CTR_PATH=$root NVIDIA_CDI_HOOK_PATH=/usr/bin/nvidia-cdi-hook NVIDIA_SIM_DEV=$devroot/dev \
		LD_LIBRARY_PATH=$(dirname "$(find "$root/usr/lib" -name 'libcuda.so.*' | sort | tail -n 1)") DP_DISABLE_HEALTHCHECKS=all \
		unshare --mount --propagation private sh -c 'mount --bind "$1/dev" "$NVIDIA_DRIVER_ROOT/dev" && mount -t tmpfs none /var/lib &&
			mount -t tmpfs none /run && mkdir -p /var/lib/kubelet/device-plugins && shift && exec "$@"' - "$devroot" \
		"$dir/answers" "$dir/$1/nvidia-device-plugin" --device-discovery-strategy=nvml --nvidia-dev-root="$devroot" "${@:2}" 2> "$dir/err" ||
		{ tail -n 5 "$dir/err"; exit 1; }
}
for version in "${versions[@]}"; do
	mkdir "$dir/$version"
	(
		cd "$dir/$version"
		printf 'module peer\n\ngo 1.26\n\ntool github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin\n' > go.mod
		export GOFLAGS=-mod=mod
		go get "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin@v$version" 2> /dev/null
		go build -ldflags -extldflags=-Wl,-z,lazy -o nvidia-device-plugin github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin
	)
	for list in envvar volume-mounts cdi-annotations cdi-cri envvar,cdi-cri volume-mounts,cdi-annotations; do
		for ids in uuid index; do
			answer "$version" --device-list-strategy=$list --device-id-strategy=$ids
		done
	done > "$dir/out"
	{
		answer "$version" --device-list-strategy=envvar --pass-device-specs
		answer "$version" --device-list-strategy=volume-mounts --pass-device-specs
		answer "$version" --device-list-strategy=envvar --config-file="$dir/shared.yaml"
		answer "$version" --device-list-strategy=cdi-cri --config-file="$dir/shared.yaml"
	} >> "$dir/out"
	sed -E "s#$devroot#DEVROOT#g; s#$root#ROOT#g; s#$dir/##g; s#$(uname -m)-linux-gnu#TRIPLE#g; s#580\.159\.04#VERSION#g;
		s#nvidia-device-plugin_[0-9a-f-]+#nvidia-device-plugin_ID#; s#\"--device-discovery-strategy=nvml\",\"--nvidia-dev-root=DEVROOT\",##" "$dir/out" > "$dir/$version.json"
	cmp "$dir/$version.json" "$dir/${versions[0]}.json"
done
cp "$dir/${versions[0]}.json" "$out"
