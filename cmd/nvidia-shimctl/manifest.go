package main

import (
	"context"
	"fmt"
	"io"
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
			&cli.StringSliceFlag{Name: "overhead", Usage: "resource `NAME=QUANTITY` that a pod costs by itself, as memory=16Mi"},
		},
		Commands: []*cli.Command{{
			Name:  "systemd-unit",
			Usage: "print the unit that runs nvidia-shimctl prepare at boot, as install --prepare-unit writes it",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "bin-dir", Value: runtimeclass.DefaultBinDir, Usage: "`DIR` of the installed programs"},
			},
			Action: func(_ context.Context, c *cli.Command) error {
				text, err := runtimeclass.PrepareUnit(c.String("bin-dir"))
				if err != nil {
					return usage(err)
				}
				_, err = io.WriteString(c.Root().Writer, text)
				return err
			},
		}},
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
	m := runtimeclass.Manifest{Handler: c.String("handler"), Name: c.String("name")}
	if m.Name == "" {
		m.Name = m.Handler
	}
	var err error
	if m.NodeSelector, err = pairs("node-selector", c.StringSlice("node-selector")); err != nil {
		return m, err
	}
	if m.Overhead, err = pairs("overhead", c.StringSlice("overhead")); err != nil {
		return m, err
	}
	for _, t := range c.StringSlice("toleration") {
		taint, effect, _ := strings.Cut(t, ":")
		key, value, _ := strings.Cut(taint, "=")
		m.Tolerations = append(m.Tolerations, runtimeclass.Toleration{Key: key, Value: value, Effect: effect})
	}
	return m, nil
}

func pairs(flag string, values []string) (map[string]string, error) {
	m := map[string]string{}
	for _, v := range values {
		key, value, ok := strings.Cut(v, "=")
		if !ok {
			return nil, usage(fmt.Errorf("--%s %q is not K=V", flag, v))
		}
		m[key] = value
	}
	return m, nil
}
