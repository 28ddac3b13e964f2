package main

import (
	"math"
	"strings"
	"testing"
)

func TestQuantile(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		q      float64
		want   float64
	}{
		{[]float64{3}, 0.9, 3},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{0, 10}, 0.9, 9},
		{[]float64{0, 10}, 1, 10},
	} {
		if got := quantile(tt.values, tt.q); got != tt.want {
			t.Errorf("quantile(%v, %v) = %v, want %v", tt.values, tt.q, got, tt.want)
		}
	}
	if !math.IsNaN(median(nil)) {
		t.Error("the median of nothing is a number")
	}
}

// The interval holds the median, and is a point where nothing varies.
func TestBootstrap(t *testing.T) {
	if low, high := bootstrap([]float64{2, 2, 2}); low != 2 || high != 2 {
		t.Errorf("got %v to %v", low, high)
	}
	values := []float64{1.0, 1.02, 0.99, 1.05, 1.01, 0.97, 1.0, 1.03}
	low, high := bootstrap(values)
	if m := median(values); low > m || high < m || low < 0.97 || high > 1.05 || low == high {
		t.Errorf("got %v to %v around %v", low, high, m)
	}
}

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

func TestVersionWord(t *testing.T) {
	for out, want := range map[string]string{
		"containerd github.com/containerd/containerd/v2 v2.4.2 \n":                 "v2.4.2",
		"runc version 1.5.2\ncommit: v1.5.2-0-g1\nspec: 1.3.0\n":                   "1.5.2",
		"containerd-shim-nvidia-v2:\n  Version:  35ffb22-dirty\n  Revision: 35f\n": "35ffb22-dirty",
		"containerd-shim-nvidia-v2:\n  Version:  v0.1.0-3-gabc\n":                  "v0.1.0-3-gabc",
	} {
		m := versionWord.FindStringSubmatch(out)
		if m == nil || m[1]+m[2] != want {
			t.Errorf("%q: got %q, want %q", out, m, want)
		}
	}
}

// Only the part's own text is replaced; a page without it gets it at its end.
func TestReplacePart(t *testing.T) {
	page := replacePart("# Benchmarks\n", "simulated", "one\n")
	page = replacePart(page, "real", "two\n")
	page = strings.Replace(page, "# Benchmarks\n", "# Benchmarks\nby hand\n", 1) + "after\n"
	page = replacePart(page, "simulated", "three\n")
	for _, want := range []string{"# Benchmarks\nby hand\n", "three\n", "two\n", "after\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, "one\n") || strings.Count(page, "<!-- begin simulated") != 1 {
		t.Errorf("the part was not replaced:\n%s", page)
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
