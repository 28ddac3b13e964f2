package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

const (
	// versionTimeout bounds each program that prints its version.
	versionTimeout = 4 * time.Second
	// maxVersion bounds what is kept of its output, in bytes.
	maxVersion = 1 << 10
)

// versions returns the first bytes of what each program prints as its version. The caller, not a
// container, chose the programs: they are those that it is about to run.
func versions(ctx context.Context, programs []string) ([]string, error) {
	var list []string
	for _, program := range programs {
		output := probe.FirstOutput{Max: maxVersion}
		if err := printVersion(ctx, program, &output); err != nil {
			return nil, fmt.Errorf("%s --version: %w", program, err)
		}
		list = append(list, string(bytes.TrimSpace(output.Text)))
	}
	return list, nil
}

func printVersion(ctx context.Context, program string, output io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.WaitDelay = []string{}, "/", output, time.Second
	return cmd.Run()
}
