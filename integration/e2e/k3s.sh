#!/bin/sh
# Installs a published k3s, a simulated driver and the shim on this host and runs two pods (as root,
# after make deps build). Nothing is removed: it is for a host to throw away, and runs in CI only.
set -eu

cd "$(dirname "$0")/../.."
curl -fsSL -o /usr/local/bin/k3s https://github.com/k3s-io/k3s/releases/download/v1.36.3%2Bk3s1/k3s
echo "2f98a9f8fe5782479ee2d54e70a1b10a7f6fd4cae8d38ed3098452dc6eed76b5  /usr/local/bin/k3s" | sha256sum --check
chmod 0755 /usr/local/bin/k3s
mkdir -p /etc/nvidia-shim
go run ./integration/simdriver -dir /var/tmp/gpus -gpus 4 >/etc/nvidia-shim/config.toml
cat >/etc/systemd/system/k3s.service <<'EOF'
[Service]
Type=notify
KillMode=process
Delegate=yes
TimeoutStartSec=0
ExecStart=/usr/local/bin/k3s server --disable=coredns,local-storage,metrics-server,servicelb,traefik
EOF
systemctl start k3s
until k3s kubectl wait --for=condition=Ready node --all --timeout=2m; do sleep 1; done

bin/nvidia-shimctl install --target k3s --restart
nvidia-shimctl check --target k3s
nvidia-shimctl manifest | k3s kubectl apply -f -

# pod NAMESPACE COMMAND: a pod whose environment wants all GPUs.
pod() {
	k3s kubectl apply -f - <<EOF
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gpu", "namespace": "$1"}, "spec": {
 "runtimeClassName": "nvidia", "restartPolicy": "Never", "containers": [{"name": "gpu", "image": "ubuntu:24.04",
 "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], "command": ["sh", "-exc", "$2"]}]}}
EOF
	k3s kubectl wait --timeout=3m --for=jsonpath='{.status.phase}'=Succeeded -n "$1" pod/gpu ||
		{ k3s kubectl describe -n "$1" pod/gpu && k3s kubectl logs -n "$1" gpu && exit 1; }
}
k3s kubectl wait --timeout=2m --for=create -n default serviceaccount/default
pod kube-system 'nvidia-smi -L | grep -c UUID: | grep -x 4' # the namespace is trusted
pod default '! ls /dev | grep nvidia'                       # nothing is allocated
