package check

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/advisories"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/shim/options"
)

func checkContainerd(n *node) []Finding {
	if n.elsewhere != "" {
		return warning("set it with --containerd", "%s", notExecuted("containerd", n.elsewhere))
	}
	if n.Containerd == "" {
		return warning("set it with --containerd", "no containerd is running or in PATH: its version is not checked")
	}
	if n.versionErr != nil {
		return problem("repair "+n.Containerd, "%v", n.versionErr)
	}
	return n.checkVersion(advisories.Containerd, n.version)
}

func checkHandlers(n *node) []Finding {
	if n.registeredErr != nil {
		return problem("fix the daemon's configuration: the daemon cannot start with it", "%v", n.registeredErr)
	}
	var list []Finding
	if n.registered.CRIDisabled {
		list = append(list, warning("remove cri from disabled_plugins if this is a Kubernetes node", "CRI is disabled in %s", n.file)...)
	}
	if len(n.handlers) == 0 {
		list = append(list, problem("nvidia-shimctl install, then restart the daemon; ctr and nerdctl need no handler", "no runtime handler in %s starts this shim", n.file)...)
	}
	for _, name := range slices.Sorted(maps.Keys(n.handlers)) {
		if wrong := checkHandler(n, name, n.handlers[name]); len(wrong) > 0 {
			list = append(list, wrong...)
		} else {
			list = append(list, fine("the handler %q in %s starts this shim", name, n.file)...)
		}
	}
	return list
}

func checkHandler(n *node, name string, r runtimeclass.Runtime) []Finding {
	var list []Finding
	switch {
	case n.owner.Name != "", r.Type != runtimeclass.RuntimeType:
	case r.Options != nil:
		list = append(list, warning("remove the options table: the shim needs none", "handler %q has an options table: pods with hostUsers: false fail with it", name)...)
	case n.version.Known() && !n.version.AtLeast(2, 4, 0):
		list = append(list, warning("nvidia-shimctl install chooses the form for this containerd",
			"handler %q: containerd %s cannot run pods with hostUsers: false by this runtime_type", name, n.version)...)
	}
	if err := checkOptions(r.Options); err != nil {
		list = append(list, problem("correct that key in "+n.file, "handler %q: %v", name, err)...)
	}
	if binary, _ := r.Options["BinaryName"].(string); strings.HasPrefix(filepath.Base(binary), "nvidia-container-runtime") {
		list = append(list, problem("remove BinaryName from the handler's options", "handler %q runs %s below this shim: GPUs would be injected twice", name, binary)...)
	}
	return list
}

// checkOptions reads a handler's options table as the shim does.
func checkOptions(table map[string]any) error {
	body, err := toml.Marshal(table)
	if err != nil {
		return err
	}
	value, err := proto.Marshal(&runtimeoptions.Options{ConfigBody: body})
	if err != nil {
		return err
	}
	_, err = options.Translate(&anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: value})
	return err
}
