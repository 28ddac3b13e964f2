package server

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"time"
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
		ctx, cancel := context.WithTimeout(ctx, versionTimeout)
		defer cancel()
		var output firstBytes
		cmd := exec.CommandContext(ctx, program, "--version")
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.WaitDelay = []string{}, "/", &output, time.Second
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s --version: %w", program, err)
		}
		list = append(list, string(bytes.TrimSpace(output)))
	}
	return list, nil
}

// firstBytes keeps the first maxVersion bytes that are written to it and never fails.
type firstBytes []byte

func (f *firstBytes) Write(p []byte) (int, error) {
	*f = append(*f, p[:min(len(p), maxVersion-len(*f))]...)
	return len(p), nil
}
