#!/bin/sh
# Installs a simulated driver, whose files are beside this script, into the machine's own root, as a
# driver's packages do: files in /usr, kernel modules. Only in a machine that can be thrown away.
# Usage: install.sh VERSION; install.sh --build VERSION KERNEL only builds the modules.
set -eu
cd "$(dirname "$0")"

# build builds the modules of version $1 for kernel $2. They print what the simulator has in /proc.
build() {
	mkdir "$1/$2"
	cp Kbuild ./*.c "$1/$2"
	{
		echo "#define VERSION \"$1\""
		echo 'static const struct file_content files[] = {'
		(cd "$1/proc" && find driver/nvidia driver/nvidia-* -type d -printf '{"%p", 0, NULL},\n')
		(cd "$1/proc" && find driver -type f -printf '%p %m\n') | while read -r name mode; do
			echo "{\"$name\", 0$mode,"
			sed 's/\\/\\\\/g; s/"/\\"/g; s/^/"/; s/$/\\n"/' "$1/proc/$name"
			echo '},'
		done
		echo '{}};'
	} >"$1/$2/files.h"
	make -s -C "/lib/modules/$2/build" M="$PWD/$1/$2" modules
}

if [ "$1" = --build ]; then
	build "$2" "$3"
	exit
fi
version=$1 kernel=$(uname -r) kept=/var/lib/simdriver
[ -e "$version/$kernel/nvidia.ko" ] || build "$version" "$kernel"

# The distribution has its own /etc/ld.so.conf.
mkdir -p $kept
(cd "$version/root" && find usr etc ! -type d ! -path 'etc/ld.so*' | sort) >$kept/new
[ ! -e $kept/files ] || comm -23 $kept/files $kept/new | (cd / && xargs -r rm -f)
mv $kept/new $kept/files
tar -C "$version/root" -cf - -T $kept/files | tar -C / --keep-directory-symlink -xf -
ldconfig
mkdir -p "/lib/modules/$kernel/updates"
cp "$version/$kernel"/*.ko "/lib/modules/$kernel/updates"
depmod
echo nvidia >/etc/modules-load.d/nvidia.conf # nvidia-uvm is left to nvidia-shimctl prepare
