package main

import (
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

func addExamples(c *cli.Command) {
	c.Description = strings.TrimSpace(c.Description + "\n\nExamples:\n\n    " + strings.Join(examples[c.Name], "\n    "))
}

var examples = map[string][]string{
	version.Ctl: {"nvidia-shimctl install --dry-run", "nvidia-shimctl check", "nvidia-shimctl help plan"},

	"info":      {"nvidia-shimctl info", "nvidia-shimctl --json info"},
	"status":    {"nvidia-shimctl status", "nvidia-shimctl status --watch --interval 5s"},
	"plan":      {"nvidia-shimctl plan --env NVIDIA_VISIBLE_DEVICES=0", "nvidia-shimctl plan --pod team/train", "nvidia-shimctl plan --container 3f9a"},
	"serve":     {"nvidia-shimctl serve", "nvidia-shimctl serve --listen unix:/run/nvidia-shim.sock"},
	"run-args":  {"docker run $(nvidia-shimctl run-args --for docker --devices 0) IMAGE"},
	"suspend":   {"nvidia-shimctl suspend web", "nvidia-shimctl suspend --pod team/notebook"},
	"resume":    {"nvidia-shimctl resume web", "nvidia-shimctl resume --gpu 1 web", "nvidia-shimctl resume --pod team/notebook"},
	"limit":     {"nvidia-shimctl limit web 6Gi", "nvidia-shimctl limit --pod team/notebook 6Gi,1=4Gi"},
	"cdi":       {"nvidia-shimctl cdi", "nvidia-shimctl cdi --output /etc/cdi/nvidia.yaml"},
	"check":     {"nvidia-shimctl check", "nvidia-shimctl check --target k3s"},
	"prepare":   {"nvidia-shimctl prepare --dry-run", "nvidia-shimctl prepare --load-modules --imex-channels 0-3"},
	"install":   {"nvidia-shimctl install --dry-run", "nvidia-shimctl install --restart", "nvidia-shimctl install --target docker --set-default", "nvidia-shimctl install --target docker --cdi --prepare-unit --gpus-flag"},
	"uninstall": {"nvidia-shimctl uninstall --dry-run", "nvidia-shimctl uninstall --all --restart"},
	"node":      {"nvidia-shimctl node --once", "nvidia-shimctl node --uninstall"},
	"manifest":  {"nvidia-shimctl manifest | kubectl apply -f -"},
	"probe":     {"nvidia-shimctl probe --live", "nvidia-shimctl probe --pod team/train"},
	"bundle":    {"nvidia-shimctl bundle --output /root/report.tar.gz"},
	"version":   {"nvidia-shimctl version"},
	"man":       {"nvidia-shimctl man | man -l -"},
	"help":      {"nvidia-shimctl help", "nvidia-shimctl help plan"},

	"completion": {"nvidia-shimctl completion bash"},
	"bash":       {"source <(nvidia-shimctl completion bash)"},
	"zsh":        {"source <(nvidia-shimctl completion zsh)"},
	"fish":       {"nvidia-shimctl completion fish | source"},
}
