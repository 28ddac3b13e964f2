#!/bin/bash
# Boots machines of real distributions, installs the deb of dist/ there and prints a table of what
# was tried (rows.sh). Images are kept beside the tables in OUT.
# Usage: run.sh BIN DIST OUT [MACHINE...]; machines: debian-12 debian-13 debian-13-arm64
set -eu
mkdir -p "$3"
bin=$(realpath "$1") dist=$(realpath "$2") out=$(realpath "$3")
shift 3
[ $# -gt 0 ] || set -- debian-12 debian-13 debian-13-arm64
cd "$(dirname "$0")"

# machine sets what qemu needs for machine $1.
machine() {
	extra=
	case $1 in
	debian-12) suite=bookworm arch=amd64 ;;
	debian-13) suite=trixie arch=amd64 extra=docker-cli ;;
	debian-13-arm64) suite=trixie arch=arm64 extra=docker-cli ;;
	*) echo "run.sh: unknown machine $1" >&2 && exit 2 ;;
	esac
	case $arch in
	amd64) console=ttyS0 qemu=(qemu-system-x86_64 -machine q35) slow=Nehalem ;;
	arm64) console=ttyAMA0 qemu=(qemu-system-aarch64 -machine virt) slow=cortex-a72 ;;
	esac
}

install_tools() {
	local missing=
	for p in qemu-system-x86 qemu-system-arm qemu-utils debootstrap debian-archive-keyring e2fsprogs; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' $p 2>/dev/null)" = installed ] || missing="$missing $p"
	done
	# shellcheck disable=SC2086 # one word a package
	[ -z "$missing" ] || DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing
}

# image makes the image of machine $1, unless it is there.
image() {
	local stamp
	stamp=$(cat image.sh start.sh test-vm.service driver/* | sha256sum)
	[ "$(cat "$out/$1.stamp" 2>/dev/null)" != "$stamp" ] || return 0
	rm -f "$out/$1.stamp"
	drivers "$out/$1.driver"
	./image.sh "$suite" "$arch" "$out/$1.driver" "$out/$1" $extra >"$out/$1.build.log" 2>&1 || {
		tail -n 30 "$out/$1.build.log" >&2
		return 1
	}
	rm -rf "$out/$1.driver"
	echo "$stamp" >"$out/$1.stamp"
}

# drivers makes the files of two versions of the simulated driver below $1.
drivers() {
	local tmp emulator=
	rm -rf "$1"
	mkdir "$1"
	tmp=$(mktemp -d)
	CGO_ENABLED=0 GOARCH=$arch ${GO:-go} build -C ../.. -trimpath -o "$tmp/simdriver" ./integration/simdriver
	if [ "$arch" != "$(dpkg --print-architecture)" ]; then
		(cd "$tmp" && apt-get download -q qemu-user-static && dpkg-deb -x qemu-user-static_*.deb .) >/dev/null 2>&1
		emulator=$tmp/usr/bin/qemu-aarch64-static
		mkdir "$tmp/cross"
		ln -s "$(command -v aarch64-linux-gnu-gcc)" "$tmp/cross/gcc"
	fi
	for version in $(sed -n 's,^old_driver=\(.*\) new_driver=,\1 ,p' rows.sh); do
		PATH=$tmp/cross:$PATH $emulator "$tmp/simdriver" -dir "$tmp/driver" -gpus 3 -version $version >/dev/null
		mkdir "$1/$version"
		cp -a "$tmp/driver/root" "$tmp/driver/proc" "$1/$version"
		$emulator "$tmp/simdriver" -dir "$tmp/driver" -remove
	done
	rm -rf "$tmp"
}

# payload packs what machine $1 gets.
payload() {
	local dir=$out/$1.files
	rm -rf "$dir"
	mkdir -p "$dir"
	cp rows.sh "$dir"
	cp "$dist"/containerd-shim-nvidia_*_"$arch".deb "$dir/package.deb"
	CGO_ENABLED=0 GOARCH=$arch ${GO:-go} build -C ../.. -trimpath -o "$dir/demo" ./integration/demo
	if [ "$arch" = "$(dpkg --print-architecture)" ]; then
		mkdir -p "$dir/bin/tools"
		cp "$bin"/tools/{containerd,ctr,runc,containerd-shim-runc-v2} "$dir/bin/tools"
	fi
	tar -C "$dir" -cf "$out/$1.payload" .
	rm -rf "$dir"
}

# accelerate sets how machine $1 runs: by KVM if this host's KVM can start its kernel.
accelerate() {
	accel=tcg,thread=multi cpu=$slow limit=50m
	[ "$arch" = "$(dpkg --print-architecture)" ] && [ -w /dev/kvm ] || return 0
	if timeout 20 "${qemu[@]}" -accel kvm -cpu host -m 512 -nodefaults -display none -serial stdio -no-reboot \
		-kernel "$out/$1.vmlinuz" -append "console=$console panic=-1" </dev/null 2>&1 | grep -aq 'Linux version'; then
		accel=kvm cpu=host limit=25m
	fi
}

# boot runs machine $1 until it powers off.
boot() {
	local began=$SECONDS disk=$out/$1.qcow2
	rm -f "$out/$1.rows"
	qemu-img create -q -f qcow2 -b "$out/$1.img" -F raw "$disk"
	timeout $limit "${qemu[@]}" -accel $accel -cpu "$cpu" -smp 2 -m 2048 -nodefaults -nic none -display none -serial stdio \
		-kernel "$out/$1.vmlinuz" -initrd "$out/$1.initrd" \
		-append "root=LABEL=root rw console=$console quiet loglevel=1 panic=-1 systemd.show_status=no ${append:-}" \
		-drive "if=none,id=root,file=$disk,cache=unsafe" -device virtio-blk-pci,drive=root \
		-drive "if=none,id=payload,file=$out/$1.payload,format=raw,read-only=on" -device virtio-blk-pci,drive=payload,serial=payload \
		-device virtio-serial-pci -chardev "file,id=rows,path=$out/$1.rows" -device virtserialport,chardev=rows,name=rows \
		</dev/null >"$out/$1.log" 2>&1 || echo "the machine did not power off within $limit" >>"$out/$1.log"
	rm -f "$disk"
	took=$((SECONDS - began))
}

failed=0
install_tools
for name in "$@"; do
	machine "$name"
	if ! image "$name"; then
		echo "$name: FAIL: its image could not be made"
		failed=1
		continue
	fi
	payload "$name"
	accelerate "$name"
	boot "$name"
	{
		echo "== $name, $accel, ${took} s with boots"
		column -t -s "$(printf '\t')" "$out/$name.rows" 2>/dev/null || true
	} | tee "$out/$name.table"
	if grep -q '^FAIL' "$out/$name.rows" || ! grep -q '^END' "$out/$name.rows"; then
		echo "$name: FAIL: $out/$name.log has the machine's console"
		failed=1
	fi
done
exit $failed
