#!/bin/sh
# Builds what the Kubernetes tests run beside containerd: one program that is
# etcd and every command of Kubernetes by the name it is called with, the CNI
# plugins, and NVIDIA's device plugin and DRA driver, at the versions that the go.mod
# of cluster/, deviceplugin/ and dradriver/ pin. Usage: build.sh OUTDIR
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

# build_nvidia DIR MODULE COMMAND [SOURCE...]: a command of the module that DIR pins.
build_nvidia() {
	cd "$here/$1"
	module=$2 command=$3 name=${3##*/}
	shift 3
	if fresh "$out/.$name.stamp" "$@"; then
		return
	fi
	rm -f "$out/.$name.stamp"
	echo "building $name $("$GO" list -m -f '{{.Version}}' "$module")"
	# NVML is found when the program runs: what is not called need not be there.
	CGO_ENABLED=1 CGO_CFLAGS=-Wno-deprecated-declarations "$GO" build -trimpath -ldflags "-s -w -extldflags=-Wl,-z,lazy" -o "$out/.new" "$module/$command"
	mv -f "$out/.new" "$out/$name"
	echo "$key" >"$out/.$name.stamp"
}

build_nvidia deviceplugin github.com/NVIDIA/k8s-device-plugin cmd/nvidia-device-plugin
build_nvidia dradriver sigs.k8s.io/dra-driver-nvidia-gpu cmd/gpu-kubelet-plugin nvfm/go.mod nvfm/pkg/nvfm/nvfm.go
