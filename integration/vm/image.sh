#!/bin/bash
# Makes the disk image of a machine of test-vm from Debian's packages: OUT.img (ext4), OUT.vmlinuz,
# OUT.initrd. It needs root, the mirror of this host's apt, 5 GB for a moment, and for another
# architecture qemu-user-static's interpreter. DRIVER has the files of the simulated drivers; their
# kernel modules are built here, since an emulated machine takes minutes for it.
# Usage: image.sh SUITE ARCH DRIVER OUT [PACKAGE...]
set -eu
suite=$1 arch=$2 driver=$3 out=$4
shift 4
here=$(cd "$(dirname "$0")" && pwd)
packages="systemd-sysv dbus udev kmod procps initramfs-tools linux-image-$arch linux-headers-$arch gcc make libc6-dev
containerd runc docker.io iptables apparmor $*"

if [ -z "${PRIVATE:-}" ]; then # mounts end with this script
	PRIVATE=1 exec unshare --mount "$0" "$suite" "$arch" "$driver" "$out" "$@"
fi
work=$(mktemp -d "$out.XXXXXX")
root=$work/root
end() {
	[ -z "${registered:-}" ] || echo -1 >"$work/binfmt/test-vm-$arch"
	umount -R "$root/proc" "$work/binfmt" 2>/dev/null || true
	rm -rf --one-file-system "$work"
}
trap end EXIT

mirror=$(apt-get indextargets --format '$(REPO_URI) $(COMPONENT) $(ORIGIN) $(CODENAME)' 'Created-By: Packages' |
	awk '$2 == "main" && $3 == "Debian" && $4 !~ /-/ {print $1; exit}')

# foreign lets this kernel run the architecture's programs until the script ends.
foreign() {
	case $arch in
	arm64) machine=aarch64 magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00' ;;
	*) echo "image.sh: $arch cannot be made on this host" >&2 && exit 1 ;;
	esac
	mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
	(cd "$work" && apt-get download qemu-user-static && dpkg-deb -x qemu-user-static_*.deb qemu && rm qemu-user-static_*.deb)
	mkdir "$work/binfmt"
	mount -t binfmt_misc binfmt_misc "$work/binfmt"
	echo ":test-vm-$arch:M::$magic:$mask:$work/qemu/usr/bin/qemu-$machine-static:F" >"$work/binfmt/register"
	registered=yes
}

export DEBIAN_FRONTEND=noninteractive LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
in_root() { chroot "$root" "$@"; }
[ "$arch" = "$(dpkg --print-architecture)" ] || foreign
debootstrap --foreign --variant=minbase --arch="$arch" "$suite" "$root" "$mirror"
in_root /debootstrap/debootstrap --second-stage
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
cp /etc/resolv.conf "$root/etc/resolv.conf"
echo "deb $mirror $suite main" >"$root/etc/apt/sources.list"
in_root apt-get update
# shellcheck disable=SC2086 # one word a package
in_root apt-get install -y --no-install-recommends $packages
in_root apt-get clean
mkdir "$root/vm"
cp -R "$here/driver" "$root/vm"
for version in "$driver"/*; do
	cp -a "$version" "$root/vm/driver"
	in_root /vm/driver/install.sh --build "${version##*/}" "$(ls "$root/lib/modules")"
done
rm -rf "$root/usr/sbin/policy-rc.d" "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,locale}/* "$root/etc/resolv.conf"
umount -R "$root/proc"

echo "${out##*/}" >"$root/etc/hostname"
: >"$root/etc/fstab"
install -m 0755 "$here/start.sh" "$root/usr/local/sbin/test-vm"
install -m 0644 "$here/test-vm.service" "$root/etc/systemd/system/"
ln -s ../test-vm.service "$root/etc/systemd/system/multi-user.target.wants/"
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer man-db.timer; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done

cp "$root"/boot/vmlinuz-* "$out.vmlinuz"
cp "$root"/boot/initrd.img-* "$out.initrd"
mke2fs -q -t ext4 -L root -d "$root" "$work/img" 4G
mv "$work/img" "$out.img"
