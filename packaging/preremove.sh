#!/bin/sh
# Undoes what nvidia-shimctl install registered, but not at an upgrade. dpkg says "remove", rpm the
# number of versions that stay.
set -e
case "$1" in remove | 0) ;; *) exit 0 ;; esac
# containerd starts the shim again to delete a container. A node of kind has a shim of its own.
for p in /proc/[0-9]*; do
	case $(readlink "$p/exe") in /usr/bin/containerd-shim-nvidia-v2*) ;; *) continue ;; esac
	if [ "$(readlink "$p/ns/pid")" = "$(readlink /proc/self/ns/pid)" ]; then
		echo "containerd-shim-nvidia: containers run with it: remove them first" >&2
		exit 1
	fi
done
if command -v systemctl >/dev/null; then
	systemctl disable nvidia-shim-prepare.service nvidia-shim-serve.service
fi
if [ -d /run/systemd/system ]; then
	systemctl stop nvidia-shim-serve.service nvidia-shim-cdi.path
fi
if [ -e /etc/nvidia-shim/installed.json ]; then
	/usr/bin/nvidia-shimctl uninstall --all --keep-programs
fi
