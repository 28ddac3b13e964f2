#!/bin/sh
# Builds tar.gz, deb, rpm, the node image and SBOMs for amd64 and arm64, and SHA256SUMS. The same
# commit gives the same bytes. REGISTRY is what image and chart are named for. Usage: build.sh OUTDIR
set -eu

mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
GO=${GO:-go}
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C
umask 022

# v1.2.3-rc.1-4-gabc becomes 1.2.3~rc.1+4.gabc, which dpkg and rpm sort as it is meant. Without a
# tag the date sorts.
tag=$(git describe --tags --always --dirty)
version=$tag
case $version in
v[0-9]*.*) version=${version#v} ;;
*) version=0~$(date -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$version ;;
esac
PACKAGE_VERSION=$(echo "$version" | sed 's/-\([0-9]*\)-g/+\1.g/; s/-dirty$/.dirty/; s/-/~/')
export PACKAGE_VERSION
# GitHub renames files with a ~.
version=$(echo "$PACKAGE_VERSION" | tr '~' -)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"/containerd-shim-nvidia* "$out"/nvidia-shim-* "$out"/sbom-* "$out/SHA256SUMS"
"$GO" build -trimpath -o "$work/" github.com/goreleaser/nfpm/v2/cmd/nfpm github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod

# What the architectures share.
make -s -C .. man BIN="$work/native"
common=$work/common
mkdir "$common"
mv "$work/native/share" "$common"
gzip -9n "$common/share/man/man8/nvidia-shimctl.8"
cp ../LICENSE nvidia-shim-serve.service "$common"
cp ../deploy/helm/nvidia-shim/files/dashboard.json "$common/grafana-dashboard.json"
cp ../deploy/helm/nvidia-shim/files/rules.yaml "$common/alert-rules.yaml"
echo "go $("$GO" env GOROOT)" >"$work/modules"
# No pipe, in which it could fail unseen.
(cd .. && CGO_ENABLED=1 "$GO" list -deps -f '{{with .Module}}{{.Path}} {{.Dir}}{{end}}' ./cmd/...) >>"$work/modules"
sort -u "$work/modules" |
	while read -r module dir; do
		for file in "$dir"/LICEN[CS]E* "$dir"/NOTICE* "$dir"/COPYING*; do
			[ ! -f "$file" ] || { echo "== $module: ${file##*/}" && cat "$file"; }
		done
	done | gzip -9n >"$common/licenses.gz"
# The defaults as comments below the headers of their tables: one that loses its mark counts.
sed 's/^[^#[]/# &/' ../docs/config.toml >"$common/config.toml"
for unit in nvidia-shim-prepare.service nvidia-shim-cdi.path nvidia-shim-cdi.service; do
	sed '1d; s,/usr/local/bin,/usr/bin,' "../runtimeclass/$unit" >"$common/$unit"
done

builds=
for ARCH in amd64 arm64; do (
	export ARCH
	name=containerd-shim-nvidia_${version}_linux_$ARCH
	case $ARCH in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; esac
	mkdir "$work/$name"
	cp -R "$common/." "$work/$name"
	case $ARCH in "$("$GO" env GOHOSTARCH)") CC=gcc ;; *) CC=$machine-linux-gnu-gcc ;; esac
	command -v "$CC" >/dev/null || { echo "$0: $CC is missing: run make deps as root" >&2; exit 1; }
	GOARCH=$ARCH CC=$CC make -s -C .. build BIN="$work/$name"
	tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - "$name" |
		gzip -9n >"$out/$name.tar.gz"
	for program in containerd-shim-nvidia-v2 nvidia-shimctl nvidia-shim-nvml; do
		"$work/cyclonedx-gomod" bin -json -noserial -notimestamp -version "$tag" \
			-output "$out/sbom-${program}_${version}_linux_$ARCH.cdx.json" "$work/$name/$program"
	done
	cp nfpm.yaml postinstall.sh preremove.sh "$work/$name"
	cd "$work/$name"
	"$work/nfpm" package --packager deb --target "$out/containerd-shim-nvidia_${version}_$ARCH.deb"
	"$work/nfpm" package --packager rpm --target "$out/containerd-shim-nvidia-$version-1.$machine.rpm"
) &
	builds="$builds $!"
done
for build in $builds; do
	wait "$build"
done
name=$work/containerd-shim-nvidia_${version}_linux
"$GO" run -trimpath ./image "$out" "${REGISTRY:=localhost}/nvidia-shim-node" "$tag" "$(git rev-parse HEAD)" amd64="${name}_amd64" arm64="${name}_arm64"

# helm package would write the time into it. A version of a chart has to be a semantic one.
case $tag in
v[0-9]*.*) chart=${tag#v} ;;
*) chart=0.0.0-g$tag ;;
esac
cp -R ../deploy/helm/nvidia-shim "$work"
sed -i "s/^version: .*/version: $chart/; s/^appVersion: .*/appVersion: \"$tag\"/" "$work/nvidia-shim/Chart.yaml"
sed -i "s,localhost/nvidia-shim-node,$REGISTRY/nvidia-shim-node," "$work/nvidia-shim/values.yaml"
tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - nvidia-shim |
	gzip -9n >"$out/nvidia-shim-$chart.tgz"
cd "$out"
sha256sum containerd-shim-nvidia* nvidia-shim-*.t* sbom-* >SHA256SUMS
ls -l
