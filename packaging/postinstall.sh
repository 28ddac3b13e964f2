#!/bin/sh
# Nothing is registered here: the operator decides when. The record of installations tells, not the
# argument: after a removal dpkg passes the version that was removed, as for an upgrade.
if [ ! -e /etc/nvidia-shim/installed.json ]; then
	echo "containerd-shim-nvidia: to register the runtime, run: nvidia-shimctl install"
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart nvidia-shim-serve.service
fi
