package main

import (
	"strings"
	"testing"
)

func TestParseTrace(t *testing.T) {
	trace := `12 execve("/a/shim", ["shim", "-namespace", "n", "start"], 0xc0 /* 5 vars */) = 0
13 execve("/b/runc", ["runc", "--root", "/r", "create", "--bundle", "x"], 0xc0 /* 5 vars */ <unfinished ...>
12 execve("/no/such", ["such"], 0xc0 /* 5 vars */) = -1 ENOENT (No such file or directory)
13 <... execve resumed>) = 0
14 execveat(6, "", ["runc", "init"], 0xc0 /* 5 vars */, AT_EMPTY_PATH) = 0
15 execve("/b/runc", ["runc", "start", "c1"], 0xc0 /* 5 vars */ <unfinished ...>
`
	if got, want := strings.Join(parseTrace([]byte(trace)), "; "), "shim start; runc create; runc init"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Ratios are made within a round, and the budget is told from the noise.
func TestMarkdown(t *testing.T) {
	r := &Result{Rounds: 4, Cases: setup{gpus: 8, small: "s", middle: "m", large: "l"}.cases()}
	for round := range 4 {
		slow := float64(1 + round)
		for _, c := range r.Cases {
			for _, v := range c.Variants {
				f := slow
				if v.Name == ours {
					f *= 1.2
				}
				if c.Name == caseCold {
					f += 50
				}
				r.Samples = append(r.Samples, Sample{Case: c.Name, Variant: v.Name, Round: round, Create: 20 * f, Start: 10 * f, Run: 100 * f})
			}
		}
	}
	text := r.markdown()
	for _, want := range []string{
		"| no GPU | ours | create + start | 75.0 | 90.0 | 133.2 | 1.200 | 1.200 – 1.200 | ≤ 1.01 | **miss** |",
		"| no GPU | stock, again | create + start | 75.0 | 75.0 | 111.0 | 1.000 | 1.000 – 1.000 |  |  |",
		"| one GPU | ours | `ctr run --rm` | 250.0 | 300.0 | 444.0 | 1.200 |",
		"| all GPUs | ours | create + start | 75.0 | 90.0 | 133.2 | 1.200 | 1.200 – 1.200 | ≤ 1.25 | pass |",
		"| create + start, one GPU, cold view |  | 1590.0 ms | +1500.0 ms (1500.0 – 1500.0) | ≤ 100 ms added | **miss** |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks\n%s\nin\n%s", want, text)
		}
	}
}
