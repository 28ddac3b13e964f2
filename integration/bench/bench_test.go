package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// Ratios are made within a round, and the budget is told from the noise.
func TestMarkdown(t *testing.T) {
	r := &Result{Rounds: 4, Many: map[string]Many{
		stock: {Tenth: []float64{50}, Last: []float64{60}, Beside: []float64{40}},
		ours:  {Tenth: []float64{50}, Last: []float64{60}, Beside: []float64{44}},
	}, Cases: setup{gpus: 8, small: "s", middle: "m", large: "l"}.cases(options{before: "another"})}
	for round := range 4 {
		slow := float64(1 + round)
		for _, c := range r.Cases {
			for _, v := range append(c.Variants, Variant{Name: bare}) {
				f := slow
				if v.Name == ours {
					f *= 1.2
				}
				if c.Name == caseCold {
					f += 50
				}
				r.Samples = append(r.Samples, Sample{Case: c.Name, Variant: v.Name, Round: round, Create: 20 * f, Start: 10 * f, Own: map[string]float64{ours: f, before: 2 * f}[v.Name]})
			}
		}
	}
	text := r.markdown()
	for _, want := range []string{
		"| no GPU | stock 75.0 ms | 90.0 ms | 1.200 (1.200–1.200) |\n",
		"| no GPU | stock, again 75.0 ms | 90.0 ms | 1.200 (1.200–1.200) | contains 1 | **miss** |",
		"| no GPU: stock, again | stock 75.0 ms | 75.0 ms | 1.000 (1.000–1.000) |\n",
		"| all GPUs | stock, same nodes 75.0 ms | 90.0 ms | 1.200 (1.200–1.200) | ≤ 1.25 | pass |",
		"| one GPU, task made again | stock 75.0 ms | 90.0 ms | 1.200 (1.200–1.200) | ≤ 1.20 | pass |",
		"| one GPU, own steps | before 5.00 ms | 3.00 ms | 0.600 (0.600–0.600) |",
		"| one GPU, cold view | one GPU 90.0 ms | 1590.0 ms | +1500.0 ms (1500.0–1500.0) | ≤ 100 ms added | **miss** |",
		"| the last of 200 running containers, stock | the 10th 50.0 ms | 60.0 ms | 1.200 (1.200–1.200) |\n",
		"| the last of 200 running containers, ours | the 10th 50.0 ms | 60.0 ms | 1.200 (1.200–1.200) | ≤ 1.10 | **miss** |",
		"| stock container beside 200 with a GPU | beside 200 of stock 40.0 ms | 44.0 ms | 1.100 (1.100–1.100) | contains 1 | **miss** |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks\n%s\nin\n%s", want, text)
		}
	}
}

// The pages give paths below the working directory, and ctr, which imports the images, runs in
// another one.
func TestRelativePaths(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	o, err := parse([]string{"-bin", "bin", "-images", "parts/images", "-before", "old/containerd-shim-nvidia-v2"})
	if err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{o.bin: "bin", o.imagesDir: "parts/images", o.before: "old/containerd-shim-nvidia-v2"} {
		if got != filepath.Join(dir, want) {
			t.Errorf("got %s, want %s below %s", got, want, dir)
		}
	}
}
