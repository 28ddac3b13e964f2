// Kindnode writes a node image for kind from parts that need no registry: Debian's packages, the
// files of kind's base image, the programs in bin/tools and bin/kubernetes.
// Usage: kindnode DIRECTORY-OF-THE-KIND-MODULE OUT
//
// The image is as kind's own, apart from the network: pods get CNI's bridge.
package main

import (
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// name is the reference of the image.
const name = "docker.io/kindest/node:test"

// packages are those of kind's base image that a node without network storage needs.
const packages = "systemd,bash,conntrack,iptables,iproute2,ethtool,util-linux,mount,kmod,libseccomp2,jq,procps"

// skip is what kind's Dockerfile removes, and what a container has of its own.
var skip = []string{
	"usr/lib/systemd/system/multi-user.target.wants/*", "usr/lib/systemd/system/local-fs.target.wants/*",
	"usr/lib/systemd/system/basic.target.wants/*", "usr/lib/systemd/system/sockets.target.wants/*udev*",
	"usr/lib/systemd/system/sockets.target.wants/*initctl*", "usr/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
	"etc/systemd/system/*.wants/*",
	"etc/resolv.conf", "etc/hostname", "usr/share/doc", "usr/share/man", "usr/share/locale",
	"dev/*", "proc/*", "sys/*", "run/*", "tmp/*", "var/cache/apt/*", "var/lib/apt/lists/*",
}

// containerdUnit makes cri-base.json, as kind's Dockerfile does, and imports the control plane's
// image under each of its names.
const containerdUnit = `[Service]
ExecStartPre=/bin/sh -ec "ctr oci spec | jq '.hooks.createContainer[0].path = \"/kind/bin/mount-product-files.sh\" | del(.process.rlimits)' >/etc/containerd/cri-base.json"
ExecStartPost=ctr --namespace k8s.io images import /kind/control-plane.tar
ExecStartPost=ctr --namespace k8s.io images tag --force %s
`

const network = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]]}}]}`

// addOn is what kind creates for pods to have a network.
const addOn = `{apiVersion: v1, kind: ConfigMap, metadata: {name: network, namespace: kube-system}, data: {plugin: bridge}}`

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: kindnode DIRECTORY-OF-THE-KIND-MODULE OUT")
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func write(kind, out string) error {
	tree, err := images.DebianTree(packages)
	if err != nil {
		return err
	}
	version, err := kubeadm("version", "--output=short")
	if err != nil {
		return err
	}
	list, err := kubeadm("config", "images", "list", "--kubernetes-version", version)
	if err != nil {
		return err
	}
	names := append(strings.Fields(list), "registry.k8s.io/pause:3.10") // that of kind's config.toml
	files, err := baseFiles(filepath.Join(kind, "images/base/files"))
	if err != nil {
		return err
	}
	control := out + ".control-plane"
	defer os.Remove(control)
	if err := controlPlane(names[0]).Write(control); err != nil {
		return err
	}
	files = append(files, programs()...)
	files = append(files,
		images.FromHost("kind/control-plane.tar", 0o644, control),
		images.Text("kind/version", 0o644, version),
		images.Text("etc/systemd/system/containerd.service.d/test.conf", 0o644, fmt.Sprintf(containerdUnit, strings.Join(names, " "))),
		images.Text("etc/systemd/journald.conf.d/kind.conf", 0o644, "[Journal]\nReadKMsg=no\nAudit=no\n"),
		images.Text("etc/cni/net.d/10-pods.conflist", 0o644, network),
		images.Text("kind/manifests/default-cni.yaml", 0o644, addOn),
		images.Dir("etc/kubernetes/manifests", 0o755),
		images.Symlink("etc/systemd/system/systemd-binfmt.service", "/dev/null"),
	)
	for _, unit := range []string{"kubelet", "containerd", "undo-mount-hacks"} {
		files = append(files, images.Symlink("etc/systemd/system/multi-user.target.wants/"+unit+".service", "../"+unit+".service"))
	}
	return images.Image{
		Name:   name,
		Config: images.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "container=docker"}, Entrypoint: []string{"/usr/local/bin/entrypoint", "/sbin/init"}, StopSignal: "SIGRTMIN+3"},
		Layers: []images.Layer{{Dir: tree, Skip: skip}, {Files: files}},
	}.Write(out)
}

// kubeadm returns what the command prints.
func kubeadm(args ...string) (string, error) {
	out, err := exec.Command(filepath.Join(testenv.ShimDir(), "kubernetes/kubeadm"), args...).Output()
	if err != nil {
		return "", fmt.Errorf("kubeadm %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// baseFiles are the files of kind's base image.
func baseFiles(dir string) (files []images.File, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, mode := strings.TrimPrefix(path, dir+"/"), uint32(0o644)
		if strings.Contains(name, "bin/") {
			mode = 0o755
		}
		files = append(files, images.FromHost(name, mode, path))
		return nil
	})
	return files, err
}

// programs are those that kind's image has, besides Debian's.
func programs() []images.File {
	bin := testenv.ShimDir()
	files := []images.File{images.Symlink("usr/sbin/init", "/lib/systemd/systemd")}
	for _, name := range testenv.Tools {
		files = append(files, images.FromHost("usr/local/bin/"+name, 0o755, filepath.Join(bin, "tools", name)))
	}
	files = append(files, images.FromHost("usr/bin/kubelet", 0o755, filepath.Join(bin, "kubernetes/kube")))
	for _, name := range []string{"kubeadm", "kubectl"} {
		files = append(files, images.Link("usr/bin/"+name, "usr/bin/kubelet"))
	}
	for _, name := range []string{"bridge", "host-local", "loopback"} {
		files = append(files, images.FromHost("opt/cni/bin/"+name, 0o755, filepath.Join(bin, "kubernetes/cni", name)))
	}
	return files
}

// controlPlane is one image for all static pods and for the pause container.
func controlPlane(name string) images.Image {
	files := []images.File{
		images.FromHost("usr/local/bin/etcd", 0o755, filepath.Join(testenv.ShimDir(), "kubernetes/kube")),
		images.FromHost("usr/local/bin/sleep", 0o755, "/bin/busybox"),
	}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		files = append(files, images.Link("usr/local/bin/"+name, "usr/local/bin/etcd"))
	}
	return images.Image{
		Name:   name,
		Config: images.Config{Env: []string{"PATH=/usr/local/bin"}, Entrypoint: []string{"sleep", "infinity"}, WorkingDir: "/"},
		Layers: []images.Layer{{Files: files}},
	}
}
