#!/bin/sh
# Nothing is registered here: the operator decides when. dpkg says "configure" and the version
# before, rpm the number of versions.
if [ "$1" = 1 ] || { [ "$1" = configure ] && [ -z "$2" ]; }; then
	echo "containerd-shim-nvidia: to register the runtime, run: nvidia-shimctl install"
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart nvidia-shim-serve.service
fi
