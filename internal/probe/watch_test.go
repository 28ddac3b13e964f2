package probe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWatchReadsUntilTheProgramFails(t *testing.T) {
	for _, tc := range []struct{ name, script, err string }{
		{"it says why", `echo '{"observed":{"gpus":[]}}{"observed":{"gpus":[]}}{"watch_error":"NVML is gone"}'`, "NVML is gone"},
		{"it fails", `echo '{"observed":{"gpus":[]}}{"observed":{"gpus":[]}}'; echo "nvidia-shimctl: no library" >&2; exit 1`, "no library"},
		{"it ends", `echo '{"observed":{"gpus":[]}}{"observed":{"gpus":[]}}'`, "has ended its answers"},
		{"it does not know the question", `echo '{"observed":{"gpus":[]}}{"observed":{"gpus":[]}}{}'`, "does not know this question"},
		{"it prints no JSON", `echo '{"observed":{"gpus":[]}}{"observed":{"gpus":[]}}x'`, "invalid character"},
		{"it is silent", `echo '{"observed":{"gpus":[]}}{"observed":{"gpus":[]}}'; exec sleep 100`, "has not answered for 2.002s"},
		{"it prints without end", `echo '{"observed":{"gpus":[]}}{"observed":{"gpus":[]}}'; yes '"' | tr -d '\n'`, "has ended its answers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := 0
			q := Questions{Watch: time.Millisecond, Timeout: time.Millisecond}
			err := Watch(t.Context(), script(t, tc.script), q, func(Observation) error { n++; return nil })
			if n != 2 || err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%d observations, %v, want %q", n, err, tc.err)
			}
		})
	}
}

// The program ends before Watch returns.
func TestWatchEndsItsProgram(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	program := script(t, `echo $$ > `+pid+`; while :; do echo '{"observed":{"gpus":[]}}'; sleep 0.01; done`)
	full := errors.New("the disk is full")
	if err := Watch(t.Context(), program, Questions{Watch: time.Hour}, func(Observation) error { return full }); !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
	text, err := os.ReadFile(pid)
	check(t, err)
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(text))); err == nil {
		t.Error("the program still runs")
	}
	ctx, stop := context.WithCancel(t.Context())
	err = Watch(ctx, script(t, `echo '{"observed":{"gpus":[]}}'; exec sleep 100`), Questions{Watch: time.Hour}, func(Observation) error { stop(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
