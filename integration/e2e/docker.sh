#!/bin/sh
# Runs the tests of integration/docker with this host's dockerd, docker, plugins and runc in place of
# those in bin/ (as root, after make deps build tools). Arguments go to go test.
set -eu

cd "$(dirname "$0")/../.."
PATH=$PATH:/usr/libexec/docker/cli-plugins:/usr/lib/docker/cli-plugins
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
mkdir "$bin/docker" "$bin/tools"
ln -s "$PWD"/bin/*nvidia* "$bin"
ln -s "$PWD"/bin/tools/* "$bin/tools"
ln -sf "$(command -v runc)" "$bin/tools/runc"
for name in dockerd docker docker-proxy docker-buildx docker-compose; do
	ln -s "$(command -v "$name")" "$bin/docker/$name"
done
dockerd --version
runc --version
NVIDIA_SHIM_BIN=$bin go test -count=1 -timeout 20m "$@" ./integration/docker
