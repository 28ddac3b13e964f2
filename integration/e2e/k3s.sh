#!/bin/sh
# Installs a published k3s and a simulated driver on this host, and then the shim: with the chart,
# which removes it again, and with nvidia-shimctl. By hand it is for a host to throw away, since k3s
# and the shim stay: a virtual machine with Debian or Ubuntu, systemd, Go and a network. As root in a
# clone: make deps build && integration/e2e/k3s.sh
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

# await LABELS: the node is up with these labels. k3s may restart meanwhile.
await() {
	timeout 5m sh -c 'until k3s kubectl wait --for=condition=Ready --timeout=5s node -l "$1"; do sleep 1; done' sh "$1"
}
await kubernetes.io/os=linux
k3s kubectl wait --timeout=2m --for=create -n default serviceaccount/default
k3s kubectl wait --timeout=2m --for=create -n kube-system serviceaccount/default

# pod NAMESPACE COMMAND: a pod whose environment wants all GPUs.
pod() {
	k3s kubectl apply -f - <<EOF
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gpu", "namespace": "$1"}, "spec": {
 "runtimeClassName": "nvidia", "restartPolicy": "Never", "containers": [{"name": "gpu", "image": "ubuntu:24.04",
 "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], "command": ["sh", "-exc", "$2"]}]}}
EOF
	k3s kubectl wait --timeout=3m --for=jsonpath='{.status.phase}'=Succeeded -n "$1" pod/gpu ||
		{ k3s kubectl describe -n "$1" pod/gpu && k3s kubectl logs -n "$1" gpu && exit 1; }
	k3s kubectl delete -n "$1" pod/gpu
}

# pods runs one in a namespace that is trusted, and one to which nothing is allocated.
pods() {
	pod kube-system 'nvidia-smi -L | grep -c UUID: | grep -x 4'
	pod default '! ls /dev | grep nvidia'
}

# files are those that an installation changes.
files() {
	find /etc/nvidia-shim /usr/local/bin -type f -exec sha256sum {} + | sort
	find /var/lib/rancher/k3s/agent/etc/containerd -type f | sort
}

make packages
go build -C integration/tools/helm -o /usr/local/bin/ helm.sh/helm/v4/cmd/helm
export KUBECONFIG=/etc/rancher/k3s/k3s.yaml
files >/var/tmp/files
k3s ctr -n k8s.io images import dist/nvidia-shim-node_*.tar
k3s kubectl label node --all nvidia.com/gpu.present=true
helm install nvidia-shim dist/nvidia-shim-[0-9]*.tgz -n kube-system --set 'args={--target,k3s}'
await nvidia-shim.io/ready=true,nvidia-shim.io/version
pods
helm upgrade nvidia-shim dist/nvidia-shim-[0-9]*.tgz -n kube-system --reset-then-reuse-values \
	--set uninstall=true,maxUnavailable=100%
await '!nvidia-shim.io/version'
helm uninstall nvidia-shim -n kube-system
files | diff /var/tmp/files -

bin/nvidia-shimctl install --target k3s --restart
nvidia-shimctl check --target k3s
nvidia-shimctl manifest | k3s kubectl apply -f -
pods
