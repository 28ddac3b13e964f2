package main

import (
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
)

// fromToolkit is nil without --from-toolkit and --toolkit-config.
func fromToolkit(c *cli.Command, to string) (*toolkit.Report, error) {
	names := toolkit.Paths
	if file := c.String("toolkit-config"); filepath.IsAbs(file) {
		names = []string{file}
	} else if file != "" {
		return nil, usage(fmt.Errorf("--toolkit-config %q is not an absolute path", file))
	} else if !c.Bool("from-toolkit") {
		return nil, nil
	}
	report, err := toolkit.Read(c.String("root"), names, to)
	return &report, err
}
