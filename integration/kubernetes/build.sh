#!/bin/sh
# Builds what the Kubernetes tests run beside containerd: one program that is
# etcd, kube-apiserver, kube-scheduler and kubelet by the name it is called with,
# and the CNI plugins, at the versions that cluster/go.mod pins.
# Usage: build.sh OUTDIR
#
# OUTDIR/kube is the program, OUTDIR/{etcd,kube-apiserver,kube-scheduler,kubelet}
# are links to it, OUTDIR/cni holds the plugins. What is up to date is skipped: a
# stamp file holds the recipe's key (pinned modules, sources, this script,
# compiler).
set -eu

if [ $# -ne 1 ]; then
	echo "usage: $0 OUTDIR" >&2
	exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/cni"
out=$(cd "$1" && pwd)
GO=${GO:-go}
cd "$here/cluster"

# The module is built as pinned, whatever the caller's environment says.
export GOWORK=off GOFLAGS=-mod=readonly CGO_ENABLED=0

key=$({ cat go.mod go.sum ./*.go ../build.sh; "$GO" version; "$GO" env GOARCH; } | sha256sum | cut -d ' ' -f 1)
if [ "$(cat "$out/.stamp" 2>/dev/null)" = "$key" ] && [ -x "$out/kube" ]; then
	exit 0
fi
rm -f "$out/.stamp"

version=$("$GO" list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
base=k8s.io/component-base/version
echo "building etcd, kube-apiserver, kube-scheduler and kubelet $version (some ten minutes from an empty cache)"
# The API server refuses to compare versions without these.
"$GO" build -trimpath -ldflags "-s -w -X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=${minor%%.*} -X $base.gitTreeState=clean" \
	-o "$out/.kube.new" .
mv -f "$out/.kube.new" "$out/kube"
for name in etcd kube-apiserver kube-scheduler kubelet; do
	ln -sfn kube "$out/$name"
done
for plugin in main/bridge main/loopback ipam/host-local; do
	"$GO" build -trimpath -ldflags "-s -w" -o "$out/cni/.new" "github.com/containernetworking/plugins/plugins/$plugin"
	mv -f "$out/cni/.new" "$out/cni/${plugin#*/}"
done
echo "$key" >"$out/.stamp"
