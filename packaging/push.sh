#!/bin/sh
# Pushes the node image and the chart, as build.sh made them for the same REGISTRY, and prints their
# names with digests as outputs of a workflow's step. Usage: REGISTRY=HOST/PATH push.sh DISTDIR
set -eu

dist=$(cd "$1" && pwd)
cd "$(dirname "$0")"
GO=${GO:-go}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$GO" build -trimpath -o "$work/" github.com/google/go-containerregistry/cmd/crane
(cd ../integration/tools/helm && CGO_ENABLED=0 "$GO" build -trimpath -ldflags "-s -w" -o "$work/" helm.sh/helm/v4/cmd/helm)
PATH=$work:$PATH

chart=$(ls "$dist"/nvidia-shim-[0-9]*.tgz)
image=$(helm template "$chart" | sed -n 's/^ *image: "\(.*\)"$/\1/p')
case $image in
"$REGISTRY/nvidia-shim-node:"*) ;;
*) echo "the chart names the image $image: make packages REGISTRY=$REGISTRY" >&2 && exit 1 ;;
esac
if [ -n "${REGISTRY_PASSWORD-}" ]; then
	# helm and cosign read the file of this login too.
	echo "$REGISTRY_PASSWORD" | crane auth login "${REGISTRY%%/*}" --username "$REGISTRY_USER" --password-stdin
fi
pushed=$(crane push "$dist/nvidia-shim-node" "$image")
helm push "$chart" "oci://$REGISTRY" >"$work/out" 2>&1 || { cat "$work/out" >&2 && exit 1; }
echo "image=$pushed"
echo "image-digest=${pushed#*@}"
echo "chart=$REGISTRY/nvidia-shim@$(sed -n 's/^Digest: //p' "$work/out")"
