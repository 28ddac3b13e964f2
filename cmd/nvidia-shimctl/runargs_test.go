package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/runargs"
)

func TestRunArgsAreThoseOfThePlan(t *testing.T) {
	d := simulate(t)
	for _, engine := range runargs.Engines {
		t.Run(engine, func(t *testing.T) {
			var r runargs.Args
			decode(t, fine(t, "--config", d.ConfigPath, "--json", "run-args", "--for", engine, "--devices", "1", "--capabilities", "utility,graphics"), &r)
			if len(r.GPUs) != 1 || r.GPUs[0].UUID != d.GPUs[1].UUID || len(r.Groups) == 0 || len(r.Limits) < 4 {
				t.Errorf("%+v", r)
			}
			all := strings.Join(r.Args, "\n")
			for i, g := range d.GPUs {
				if has := strings.Contains(all, filepath.Join(d.DevRoot, "dev/nvidia")+string(rune('0'+g.Minor))); has != (i == 1) {
					t.Errorf("GPU %d: %v", i, has)
				}
			}
			if strings.Contains(all, "libcuda.so") || !strings.Contains(all, "/usr/local/nvidia/lib64/libnvidia-ml.so.1") || !strings.Contains(all, "/usr/bin/nvidia-smi") {
				t.Errorf("not the files of utility and graphics:\n%s", all)
			}
			for _, f := range r.Files {
				if st, err := os.Lstat(f.Source); err != nil || strings.HasPrefix(f.Source, d.StateDir) || st.Mode()&os.ModeSymlink != 0 {
					t.Errorf("%+v: %v", f, err)
				}
			}
			_, text, notes := ctl(t, "--config", d.ConfigPath, "run-args", "--for", engine, "-e", "NVIDIA_VISIBLE_DEVICES=1", "--capabilities", "utility,graphics")
			if !strings.Contains(notes, "limit: /proc/driver/nvidia is not masked") {
				t.Errorf("notes %q", notes)
			}
			if split := strings.Fields(text); !slices.Equal(split, r.Args) {
				t.Errorf("a command substitution gives %q", split)
			}
		})
	}
	if code, _, errs := ctl(t, "--config", d.ConfigPath, "run-args", "--for", "ctr", "--devices", "9"); code != 1 || !strings.Contains(errs, "unknown GPU") {
		t.Errorf("an unknown GPU: status %d, %s", code, errs)
	}
}
