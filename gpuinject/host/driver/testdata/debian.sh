#!/usr/bin/env bash
# Writes debian-SUITE.txt beside this file: the names of the driver's files in Debian's non-free packages,
# "FILE" or "LINK -> TARGET", and of libraries "FILE = SONAME", with the links that their alternatives
# make. Nothing else of the packages is kept. Run by hand with apt's own mirror, for amd64.
#
# Last run: 2026-11-28.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mirror=$(sed -n 's/^URIs: //p' /etc/apt/sources.list.d/*.sources | head -n 1)
for suite in bookworm trixie; do
	apt="$dir/$suite"
	mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs" "$apt/root"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite non-free" > "$apt/list"
	options=(-o "Dir::Etc::sourcelist=$apt/list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o Dir::State::status=/dev/null)
	apt-get -qq "${options[@]}" update
	cd "$apt/debs"
	apt-cache "${options[@]}" dumpavail |
		awk -v RS= '/\nSource: nvidia-graphics-drivers( |\n)/ { match($0, /^Package: [^\n]*/); print substr($0, 10, RLENGTH - 9) }' |
		grep -vE 'kernel|dkms|detect|legacy' | xargs apt-get -qq "${options[@]}" download
	for deb in *.deb; do dpkg-deb -x "$deb" "$apt/root"; done
	dpkg-deb -e nvidia-alternative_*.deb "$apt/control"
	# What the package's trigger links: add_slave LINK NAME FILE, and add_multiarch_slave DIRECTORY BELOW
	# NAME DIRECTORY BELOW, in the directories of each architecture.
	grep -oE 'add_(multiarch_)?slave [^)]*' "$apt/control/postinst" | tr -d '"' | sed -E 's/ +/ /g' |
		awk -F ' ' -v at=/x86_64-linux-gnu/ '
			/^add_slave \// { print $2, $4 }
			/^add_multiarch_slave \// && NF == 6 { print $2 at $3 $4, $5 at $6 $4 }
			/^add_multiarch_slave \// && NF == 5 { print $2 at $3, $4 at $5 $3 }' |
		while read -r link file; do
			if [ -e "$apt/root$file" ] && [ ! -e "$apt/root$link" ]; then
				mkdir -p "$(dirname "$apt/root$link")"
				ln -s "$file" "$apt/root$link"
			fi
		done
	version=$(basename "$(find "$apt/root" -name 'libcuda.so.*.*' | head -n 1)")
	{
		echo "# Debian $suite, driver ${version#libcuda.so.}"
		cd "$apt/root"
		find . \( -type f -o -type l \) ! -path './usr/share/doc/*' ! -path './usr/share/man/*' ! -path './usr/share/lintian/*' ! -path './usr/share/bug/*' ! -path './usr/lib/systemd/*' | sort |
			while read -r file; do
				if [ -L "$file" ]; then
					echo "${file#./} -> $(readlink "$file")"
				elif [[ $file == *.so* ]]; then
					echo "${file#./} = $(readelf -d "$file" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')"
				else
					echo "${file#./}"
				fi
			done
	} > "$here/debian-$suite.txt"
done
