package main

import (
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
		Action: func(_ context.Context, c *cli.Command) error {
			m, err := manifest(c)
			if err != nil {
				return err
			}
			text, err := m.YAML()
			if err != nil {
				return usage(err)
			}
			_, err = c.Root().Writer.Write(text)
			return err
		},
	}
}

func manifest(c *cli.Command) (runtimeclass.Manifest, error) {
	m := runtimeclass.Manifest{Handler: c.String("handler"), Name: c.String("name"), NodeSelector: map[string]string{}}
	if m.Name == "" {
		m.Name = m.Handler
	}
	for _, label := range c.StringSlice("node-selector") {
		key, value, ok := strings.Cut(label, "=")
		if !ok {
			return m, usage(fmt.Errorf("--node-selector %q is not K=V", label))
		}
		m.NodeSelector[key] = value
	}
	for _, t := range c.StringSlice("toleration") {
		taint, effect, _ := strings.Cut(t, ":")
		key, value, _ := strings.Cut(taint, "=")
		m.Tolerations = append(m.Tolerations, runtimeclass.Toleration{Key: key, Value: value, Effect: effect})
	}
	return m, nil
}
