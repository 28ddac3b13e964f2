#!/bin/sh
# Builds what the Kubernetes tests run beside containerd: one program that is
# etcd and every command of Kubernetes by the name it is called with, the CNI
# plugins, and NVIDIA's device plugin, at the versions that the go.mod of cluster/
# and deviceplugin/ pin. Usage: build.sh OUTDIR
#
# OUTDIR/kube is the program, OUTDIR/{etcd,kubelet,...} are links to it, OUTDIR/cni
# holds the plugins. What is up to date is skipped: a stamp file holds the recipe's key.
. "$(dirname "$0")/../tools/recipe.sh"
mkdir -p "$out/cni"

cd "$here/cluster"
if ! fresh "$out/.kube.stamp" ./*.go; then
	rm -f "$out/.kube.stamp"
	version=$("$GO" list -m -f '{{.Version}}' k8s.io/kubernetes)
	minor=${version#v1.}
	base=k8s.io/component-base/version
	echo "building etcd and Kubernetes $version (some ten minutes from an empty cache)"
	# The API server refuses to compare versions without these.
	CGO_ENABLED=0 "$GO" build -trimpath -ldflags "-s -w -X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=${minor%%.*} -X $base.gitTreeState=clean" \
		-o "$out/.kube.new" .
	mv -f "$out/.kube.new" "$out/kube"
	for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubeadm kubectl; do
		ln -sfn kube "$out/$name"
	done
	for plugin in main/bridge main/loopback ipam/host-local; do
		CGO_ENABLED=0 "$GO" build -trimpath -ldflags "-s -w" -o "$out/cni/.new" "github.com/containernetworking/plugins/plugins/$plugin"
		mv -f "$out/cni/.new" "$out/cni/${plugin#*/}"
	done
	echo "$key" >"$out/.kube.stamp"
fi

cd "$here/deviceplugin"
if ! fresh "$out/.nvidia-device-plugin.stamp"; then
	rm -f "$out/.nvidia-device-plugin.stamp"
	echo "building nvidia-device-plugin $("$GO" list -m -f '{{.Version}}' github.com/NVIDIA/k8s-device-plugin)"
	# NVML is found when the program runs: what is not called need not be there.
	CGO_ENABLED=1 "$GO" build -trimpath -ldflags "-s -w -extldflags=-Wl,-z,lazy" \
		-o "$out/.new" github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin
	mv -f "$out/.new" "$out/nvidia-device-plugin"
	echo "$key" >"$out/.nvidia-device-plugin.stamp"
fi
