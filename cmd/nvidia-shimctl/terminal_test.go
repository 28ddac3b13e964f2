package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term/termtest"
)

// onTerminal runs the tool as a person sees it, in a terminal of that many columns.
func onTerminal(t *testing.T, columns int, args ...string) (status int, screen string) {
	t.Helper()
	t.Setenv(config.EnvFile, "")
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	w, read := termtest.Open(t, columns)
	status = run(t.Context(), append([]string{"nvidia-shimctl"}, args...), w, &bytes.Buffer{})
	return status, read()
}

func TestOutputHasColoursOnATerminalOnly(t *testing.T) {
	d := simulate(t)
	for _, c := range []struct {
		name    string
		args    []string
		columns int
		want    []string
	}{
		{"plan", []string{"--config", d.ConfigPath, "plan", "--env", "NVIDIA_VISIBLE_DEVICES=1"}, 100, []string{"\x1b[1mGPU 1:\x1b[0m", "\x1b[32m" + d.GPUs[1].UUID}},
		{"plan that is refused", []string{"--config", d.ConfigPath, "plan", "--env", "NVIDIA_VISIBLE_DEVICES=7"}, 100, []string{"\x1b[1mrefused:\x1b[0m \x1b[31m"}},
		{"info", []string{"--config", d.ConfigPath, "info"}, 100, []string{"\x1b[1mINDEX\x1b[0m", "\x1b[32mNVIDIA H200\x1b[0m"}},
		{"check", []string{"--config", d.ConfigPath, "check"}, 100, []string{"\x1b[32mok\x1b[0m"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, screen := onTerminal(t, c.columns, c.args...)
			for _, s := range c.want {
				if !strings.Contains(screen, s) {
					t.Errorf("no %q in\n%q", s, screen)
				}
			}
			piped, out, _ := ctl(t, c.args...)
			if strings.Contains(out, "\x1b") || piped != status {
				t.Errorf("in a pipe: status %d, on a terminal %d:\n%q", piped, status, out)
			}
			// JSON is for programs, on a terminal too.
			if _, screen := onTerminal(t, c.columns, append([]string{"--json"}, c.args...)...); strings.Contains(screen, "\x1b") {
				t.Errorf("JSON with colours: %q", screen)
			}
		})
	}
}
