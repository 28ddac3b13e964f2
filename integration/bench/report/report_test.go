package report

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
		if got := Quantile(tt.values, tt.q); got != tt.want {
			t.Errorf("Quantile(%v, %v) = %v, want %v", tt.values, tt.q, got, tt.want)
		}
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("the median of nothing is a number")
	}
}

// The interval holds the median, and is a point where nothing varies.
func TestBootstrap(t *testing.T) {
	if low, high := Bootstrap([]float64{2, 2, 2}); low != 2 || high != 2 {
		t.Errorf("got %v to %v", low, high)
	}
	values := []float64{1.0, 1.02, 0.99, 1.05, 1.01, 0.97, 1.0, 1.03}
	low, high := Bootstrap(values)
	if m := Median(values); low > m || high < m || low < 0.97 || high > 1.05 || low == high {
		t.Errorf("got %v to %v around %v", low, high, m)
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
	page := replacePart("# Benchmarks\n", "simulated", "a test", "one\n")
	page = replacePart(page, "real", "a test", "two\n")
	page = strings.Replace(page, "# Benchmarks\n", "# Benchmarks\nby hand\n", 1) + "after\n"
	page = replacePart(page, "simulated", "a test", "three\n")
	for _, want := range []string{"# Benchmarks\nby hand\n", "three\n", "two\n", "after\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, "one\n") || strings.Count(page, "<!-- begin simulated") != 1 {
		t.Errorf("the part was not replaced:\n%s", page)
	}
}
