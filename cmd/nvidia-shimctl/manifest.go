package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func manifestCommand() *cli.Command {
	return &cli.Command{
		Name:  "manifest",
		Usage: "print the RuntimeClass for `kubectl apply -f -`",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "handler", Value: runtimeclass.DefaultHandler, Usage: "`NAME` of the handler in containerd's configuration"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the RuntimeClass (default: the handler's)"},
			&cli.StringSliceFlag{Name: "node-selector", Usage: "label `K=V` of the nodes that have the handler"},
			&cli.StringSliceFlag{Name: "toleration", Usage: "taint `K[=V][:EFFECT]` that its pods tolerate"},
		},
		Action: printManifest,
	}
}

func printManifest(_ context.Context, c *cli.Command) error {
	m := runtimeclass.Manifest{
		Handler:  c.String("handler"),
		Metadata: map[string]string{"name": cmp.Or(c.String("name"), c.String("handler"))},
	}
	m.Scheduling.NodeSelector = map[string]string{}
	for _, label := range c.StringSlice("node-selector") {
		key, value, ok := strings.Cut(label, "=")
		if !ok {
			return usage(fmt.Errorf("--node-selector %q is not K=V", label))
		}
		m.Scheduling.NodeSelector[key] = value
	}
	for _, taint := range c.StringSlice("toleration") {
		taint, effect, _ := strings.Cut(taint, ":")
		t := runtimeclass.Toleration{Effect: effect, Operator: "Exists"}
		if t.Key, t.Value, _ = strings.Cut(taint, "="); t.Value != "" {
			t.Operator = "Equal"
		}
		m.Scheduling.Tolerations = append(m.Scheduling.Tolerations, t)
	}
	text, err := m.YAML()
	if err != nil {
		return usage(err)
	}
	_, err = c.Root().Writer.Write(text)
	return err
}
