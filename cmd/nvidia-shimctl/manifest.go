package main

import (
	"cmp"
	"context"
	"strings"

	"github.com/urfave/cli/v3"
	"go.yaml.in/yaml/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func manifestCommand() *cli.Command {
	return &cli.Command{
		Name:  "manifest",
		Usage: "print the RuntimeClass for `kubectl apply -f -`",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "handler", Value: runtimeclass.DefaultHandler, Usage: "`NAME` of the handler in containerd's configuration"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the RuntimeClass (default: the handler's)"},
			&cli.StringMapFlag{Name: "node-selector", Usage: "label `K=V` of the nodes that have the handler"},
			&cli.StringSliceFlag{Name: "toleration", Usage: "taint `K[=V][:EFFECT]` that its pods tolerate"},
		},
		Action: printManifest,
	}
}

// runtimeClass is a RuntimeClass of node.k8s.io/v1.
type runtimeClass struct {
	APIVersion string            `yaml:"apiVersion" json:"apiVersion"`
	Handler    string            `json:"handler"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Scheduling struct {
		NodeSelector map[string]string   `yaml:"nodeSelector,omitempty" json:"nodeSelector,omitempty"`
		Tolerations  []map[string]string `yaml:",omitempty" json:"tolerations,omitempty"`
	} `yaml:",omitempty" json:"scheduling,omitzero"`
}

func printManifest(_ context.Context, c *cli.Command) error {
	handler := c.String("handler")
	if err := runtimeclass.ValidHandler(handler); err != nil {
		return usage(err)
	}
	class := runtimeClass{
		APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass", Handler: handler,
		Metadata: map[string]string{"name": cmp.Or(c.String("name"), handler)},
	}
	class.Scheduling.NodeSelector = c.StringMap("node-selector")
	for _, taint := range c.StringSlice("toleration") {
		taint, effect, _ := strings.Cut(taint, ":")
		key, value, _ := strings.Cut(taint, "=")
		toleration := map[string]string{"key": key, "operator": "Exists"}
		if value != "" {
			toleration["operator"], toleration["value"] = "Equal", value
		}
		if effect != "" {
			toleration["effect"] = effect
		}
		class.Scheduling.Tolerations = append(class.Scheduling.Tolerations, toleration)
	}
	if c.Bool("json") {
		return term.JSON(c.Root().Writer, class)
	}
	enc := yaml.NewEncoder(c.Root().Writer)
	enc.SetIndent(2)
	return enc.Encode(class)
}
