package runtimeclass

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
)

// defaultKubeletDir is the kubelet's default --root-dir; k0sKubeletDir is the default of k0s.
const (
	defaultKubeletDir = "/var/lib/kubelet"
	k0sKubeletDir     = "/var/lib/k0s/kubelet"
)

// kubeletFiles can have flags of the kubelet; the last file with --root-dir wins.
var kubeletFiles = []string{
	"/etc/rancher/*/config.yaml", "/etc/rancher/*/config.yaml.d/*.yaml", "/etc/systemd/system/k0s*.service",
	"/usr/lib/systemd/system/kubelet.service", "/etc/systemd/system/kubelet.service", "/usr/lib/systemd/system/kubelet.service.d/*.conf",
	"/etc/systemd/system/kubelet.service.d/*.conf", "/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet", "/etc/sysconfig/kubelet",
}

// rootDirFlag matches --root-dir, --kubelet-root-dir of k0s and kubelet-arg of k3s.
var rootDirFlag = regexp.MustCompile(`(?m)^[^#\n]*\broot-dir[=\s]["']?(/[^\s"',\]]+)`)

// KubeletSocket returns the PodResources socket of a host's kubelet. If proc is not "" and a
// kubelet runs, its flags determine the path; otherwise kubeletFiles do. It returns "" if there is
// no sign of a kubelet.
func KubeletSocket(h Host, proc procfs.FS) string {
	dir := ""
	if h.Exists(k0sKubeletDir) {
		dir = k0sKubeletDir
	}
	for _, pattern := range kubeletFiles {
		names, _ := h.Glob(pattern) // the patterns are valid
		for _, name := range names {
			if text, err := h.Read(name); err == nil {
				dir = rootDir(string(text), dir)
			}
		}
	}
	for _, p := range proc.Running("kubelet") {
		dir = rootDir(strings.Join(p.Args, "\n"), defaultKubeletDir)
	}
	if dir == "" {
		return ""
	}
	// microk8s links the default directory to its own.
	if real, err := h.Follow(defaultKubeletDir); err == nil && real == path.Clean(dir) {
		dir = defaultKubeletDir
	}
	return path.Join(dir, "pod-resources/kubelet.sock")
}

func rootDir(text, otherwise string) string {
	if flags := rootDirFlag.FindAllStringSubmatch(text, -1); len(flags) > 0 {
		return flags[len(flags)-1][1]
	}
	return otherwise
}

// addKubelet adds the kubelet's socket to the shim's settings, unless it is the default or the file
// belongs to the operator.
func (p *Plan) addKubelet(o *Options) error {
	file, err := p.Host.Read(o.ShimConfig)
	if err != nil || o.KubeletSocket == "" {
		return err
	}
	settings := o.ShimSettings
	if !o.WriteShimConfig {
		settings = string(file)
	}
	tables, err := tomledit.Decode([]byte(settings))
	if err != nil {
		return fmt.Errorf("%s: %w", o.ShimConfig, err)
	}
	policy := tomledit.Table(tables, "policy")
	have, set := policy["kubelet-socket"]
	switch {
	case !set && o.KubeletSocket == path.Join(defaultKubeletDir, "pod-resources/kubelet.sock"):
		return nil
	case file != nil && !o.WriteShimConfig && !Unchanged(file) && hasSettings(file):
		if have != o.KubeletSocket {
			p.note("the kubelet uses another socket: set policy.kubelet-socket = %q in %s", o.KubeletSocket, o.ShimConfig)
		}
		return nil
	}
	if policy == nil {
		policy = map[string]any{}
		tables["policy"] = policy
	}
	policy["kubelet-socket"] = o.KubeletSocket
	text, err := toml.Marshal(tables)
	o.ShimSettings, o.WriteShimConfig = string(text), true
	return err
}
