package check

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// daemonChecks are for one daemon each, by its name.
var daemonChecks = map[string]func(context.Context, *node) []Finding{runtimeclass.Docker: checkDocker}

func checkDaemon(ctx context.Context, n *node) []Finding {
	if f := daemonChecks[n.owner.Name]; f != nil {
		return f(ctx, n)
	}
	return nil
}

// checkDocker checks what else Docker needs: a version that supports our runtime, and a program that
// must be in its PATH before it resolves --gpus by a CDI file.
func checkDocker(ctx context.Context, n *node) []Finding {
	d := n.daemon("dockerd")
	path := cmp.Or(d.Environ["PATH"], runtimeclass.ServicePath)
	switch {
	case d.program == "" && d.Program != "":
		return warning("check that `"+d.Program+" --version` says 24.0 or later", "%s", notExecuted("dockerd", d.Program))
	case d.program == "":
		return warning("install Docker, or check another daemon with --target", "no dockerd is running or in PATH: its version is not checked")
	}
	v, err := runtimeclass.DaemonVersion(ctx, d.program)
	switch {
	case err != nil:
		return problem("repair "+d.program, "%v", err)
	case v.Known() && !v.AtLeast(24, 0, 0):
		return problem("use Docker 24.0 or later", "dockerd %s ignores runtimeType: containers start without their GPUs", v)
	}
	const install = "nvidia-shimctl install --target docker --gpus-flag, then systemctl restart docker"
	hook := n.find(runtimeclass.CDIHookName, path)
	if to, err := os.Readlink(n.real(hook)); err == nil && filepath.Base(to) == "false" {
		return warning("rm "+hook+", then "+install, "the link %s to %s hides the program of NVIDIA's toolkit", hook, to)
	}
	_, err = cdispec.Read(n.real(cdispec.Path))
	runtimeHook := n.find(runtimeclass.RuntimeHookName, path)
	switch features, readErr := n.dockerFeatures(); {
	case err != nil || readErr != nil:
	case v.Known() && !v.AtLeast(28, 2, 0) && !features["cdi"]:
		return warning("use Docker 28.2 or later, or set \"features\": {\"cdi\": true} in "+n.file+" (Docker 25.0), then systemctl restart docker",
			"docker run --device nvidia.com/gpu=0 fails: CDI is not on by default in dockerd %s", v)
	case v.Known() && !v.AtLeast(29, 0, 0) && hook != "" && runtimeHook == "":
		return warning("use Docker 29.0 or later, or ask with --device nvidia.com/gpu=0", "docker run --gpus fails: dockerd %s does not resolve it by CDI", v)
	case (!v.Known() || v.AtLeast(29, 0, 0)) && hook == "" && runtimeHook == "":
		return warning(install, "docker run --gpus fails: %s is not in dockerd's PATH (%s)", runtimeclass.CDIHookName, path)
	}
	return fine("dockerd %s reads the runtimes of %s", v, n.file)
}

func (n *node) dockerFeatures() (map[string]bool, error) {
	var config struct {
		Features map[string]bool `json:"features"`
	}
	text, err := os.ReadFile(n.real(n.file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	return config.Features, err
}
