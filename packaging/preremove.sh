#!/bin/sh
# Undoes what nvidia-shimctl install registered, but not at an upgrade. dpkg says "remove", rpm the
# number of versions that stay.
set -e
case "$1" in remove | 0) ;; *) exit 0 ;; esac
if command -v systemctl >/dev/null; then
	systemctl disable nvidia-shim-prepare.service nvidia-shim-serve.service
fi
if [ -d /run/systemd/system ]; then
	systemctl stop nvidia-shim-serve.service
fi
if [ -e /etc/nvidia-shim/installed.json ]; then
	/usr/bin/nvidia-shimctl uninstall --all --keep-programs
fi
