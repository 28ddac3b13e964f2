#!/usr/bin/env bash
# nvidia-ctk 1.20.2 with containerd 1.x (Debian 12's 1.6.20; 1.7.36 does the same, 2.x does not): with
# a configuration that names no runtime, `nvidia-ctk runtime configure` leaves containerd without the
# runtime runc, which stays the name of its default. A file with any runtime replaces the built-in
# ones, and nvidia-ctk, which reads the files and not containerd's own dump (--config-source=file is
# its default), copies none that it does not see there.
#
# Expected before the first run: the runtime nvidia is added, and runc stays.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -q containerd=1.6.20~ds1-1+deb12u3 >/dev/null 2>&1
dpkg-deb -x ./containerd_*.deb root
cat > go.mod <<'MOD'
module finding

go 1.26

tool github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk
MOD
GOFLAGS=-mod=mod go get github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk@v1.20.2 2>/dev/null
GOFLAGS=-mod=mod go build -o nvidia-ctk github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk 2>/dev/null
echo 'version = 2' > config.toml
mkdir conf.d
runtimes() {
	root/usr/bin/containerd --config config.toml config dump 2>/dev/null |
		sed -n 's/.*containerd\.runtimes\.\([a-z]*\)\]$/\1/p; s/.*\(default_runtime_name = .*\)/\1/p' | tr '\n' ' '
}
root/usr/bin/containerd --version
echo "before: $(runtimes)"
./nvidia-ctk --quiet runtime configure --runtime=containerd --config="$dir/config.toml" --drop-in-config="$dir/conf.d/99-nvidia.toml"
after=$(runtimes)
echo "after:  $after"
case " $after" in
*" runc "*) exit 1 ;;
esac
