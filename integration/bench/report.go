package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/bench/report"
)

// publish prints the generated part and writes it into the page out, if there is one. Simulated and
// real runs have a part each.
func publish(r *Result, out string, w io.Writer) error {
	text := r.markdown()
	fmt.Fprint(w, text)
	if out == "" {
		return nil
	}
	part := "simulated"
	if r.Real {
		part = "real"
	}
	return report.WritePart(out, part, "integration/bench", text)
}

func createStart(s Sample) float64 { return s.Create + s.Start }
func processor(s Sample) float64   { return s.CPU }
func ownSteps(s Sample) float64    { return s.Own }

// markdown is the generated part: the host, and one table.
func (r *Result) markdown() string {
	var b strings.Builder
	h := r.Host
	driver := fmt.Sprintf("Simulated driver %s with %d GPUs", h.Driver, h.GPUs)
	if r.Real {
		driver = fmt.Sprintf("NVIDIA driver %s with %d GPUs", h.Driver, h.GPUs)
	}
	fmt.Fprintf(&b, "%s\n| what | compared with | this shim | ratio or difference | budget | |\n|---|---|---|---|---|---|\n", h.Line(driver, r.Rounds))
	for _, c := range r.Cases {
		r.times(&b, c)
	}
	r.others(&b)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	return b.String()
}

// row writes a row of the table without the empty cells at its end.
func row(b *strings.Builder, cells ...string) {
	fmt.Fprintf(b, "| %s |\n", strings.TrimRight(strings.Join(cells, " | "), " |"))
}

// times are the rows of a case: every variant but stock against stock, and ours against
// the one that its budget names and against the build before.
func (r *Result) times(b *strings.Builder, c Case) {
	ratio := func(what, own, base string, value func(Sample) float64, budget string, judge func(median, low, high float64) string) {
		x, y := r.series(c.Name, own, value), r.series(c.Name, base, value)
		ratios := report.Combine(x, y, func(x, y float64) float64 { return x / y })
		if len(ratios) == 0 {
			return
		}
		low, high := report.Bootstrap(ratios)
		median := report.Median(ratios)
		row(b, what, fmt.Sprintf("%s %.1f ms", base, report.Median(values(y))), fmt.Sprintf("%.1f ms", report.Median(values(x))),
			fmt.Sprintf("%.3f (%.3f–%.3f)", median, low, high), budget, judge(median, low, high))
	}
	none := func(float64, float64, float64) string { return "" }
	for _, v := range c.Variants {
		switch v.Name {
		case stock:
		case ours:
			budget, judge := "", none
			switch {
			case c.Against != "" && c.Budget == 0:
				budget, judge = "contains 1", contains
			case c.Against != "":
				budget = fmt.Sprintf("≤ %.2f", c.Budget)
				judge = func(m, low, high float64) string { return report.Verdict(m, low, high, c.Budget) }
			}
			if c.Against != stock {
				ratio(c.Name, ours, stock, createStart, "", none)
			}
			if c.Against != "" {
				ratio(c.Name, ours, c.Against, createStart, budget, judge)
			}
			ratio(c.Name, ours, before, createStart, "", none)
			r.ownSteps(b, c)
			r.processorTime(b, c)
		default:
			ratio(c.Name+": "+v.Name, v.Name, stock, createStart, "", none)
		}
	}
	if c.AddedTo == "" {
		return
	}
	warm, cold := r.series(c.AddedTo, ours, createStart), r.series(c.Name, ours, createStart)
	if added := report.Combine(cold, warm, func(x, y float64) float64 { return x - y }); len(added) > 0 {
		low, high := report.Bootstrap(added)
		row(b, c.Name, fmt.Sprintf("%s %.1f ms", c.AddedTo, report.Median(values(warm))), fmt.Sprintf("%.1f ms", report.Median(values(cold))),
			fmt.Sprintf("%+.1f ms (%.1f–%.1f)", report.Median(added), low, high), fmt.Sprintf("≤ %.0f ms added", c.BudgetAdded), report.Verdict(report.Median(added), low, high, c.BudgetAdded))
	}
}

// processorTime is the row of the shim's own computing: the difference to the stock
// shim that has runc make the same nodes, or to the build before.
func (r *Result) processorTime(b *strings.Builder, c Case) {
	for _, base := range []string{bare, before} {
		x, y := values(r.series(c.Name, ours, processor)), values(r.series(c.Name, base, processor))
		if len(x) == 0 || len(y) == 0 {
			continue
		}
		added := mean(x) - mean(y)
		row(b, c.Name+", processor time", fmt.Sprintf("%s %.1f ms", base, mean(y)), fmt.Sprintf("%.1f ms", mean(x)), fmt.Sprintf("%+.1f ms", added))
	}
}

// ownSteps is the row of what our shim does before runc, compared with the build before, if there
// is one.
func (r *Result) ownSteps(b *strings.Builder, c Case) {
	own, base := r.series(c.Name, ours, ownSteps), r.series(c.Name, before, ownSteps)
	if len(own) == 0 {
		return
	}
	with, ratio := "", ""
	if ratios := report.Combine(own, base, func(x, y float64) float64 { return x / y }); len(ratios) > 0 {
		low, high := report.Bootstrap(ratios)
		with = fmt.Sprintf("%s %.2f ms", before, report.Median(values(base)))
		ratio = fmt.Sprintf("%.3f (%.3f–%.3f)", report.Median(ratios), low, high)
	}
	row(b, c.Name+", own steps", with, fmt.Sprintf("%.2f ms", report.Median(values(own))), ratio)
}

// others writes all other rows.
func (r *Result) others(b *strings.Builder) {
	exact := func(v, budget float64) string { return report.Verdict(v, v, v, budget) }
	for _, way := range []string{runDetached, startTasks} {
		own, base := r.Burst[way][ours], r.Burst[way][stock]
		if len(own) == 0 || len(base) == 0 {
			continue
		}
		ratio := report.Median(own) / report.Median(base)
		limit, result := "", ""
		if r.Real && way == runDetached {
			limit, result = fmt.Sprintf("≥ %.2f", budgetBurst), exact(-ratio, -budgetBurst)
		}
		row(b, way, fmt.Sprintf("stock %.0f/s", report.Median(base)), fmt.Sprintf("%.0f/s", report.Median(own)), fmt.Sprintf("%.3f", ratio), limit, result)
	}
	r.many(b)
	if len(r.Binaries) > 0 {
		base, own := r.Binaries["containerd-shim-runc-v2"], r.Binaries["containerd-shim-nvidia-v2"]
		row(b, "binary", "stock "+megabytes(base), megabytes(own), fmt.Sprintf("%.2f ×", float64(own)/float64(base)), "≤ "+megabytes(budgetBinary), exact(float64(own), budgetBinary))
	}
	for _, own := range []string{ours, before} {
		anon := func(runtime string) float64 {
			var values []float64
			for _, m := range r.Memory[runtime] {
				values = append(values, float64(m.Anon))
			}
			return report.Median(values)
		}
		if len(r.Memory[stock]) == 0 || len(r.Memory[own]) == 0 {
			continue
		}
		more := anon(own) - anon(stock)
		row(b, "memory of a shim, "+own, fmt.Sprintf("stock %.1f MiB", anon(stock)/1024), fmt.Sprintf("%.1f MiB", anon(own)/1024),
			fmt.Sprintf("%+.1f MiB", more/1024), fmt.Sprintf("+%.1f MiB", budgetAnonKiB/1024), exact(more, budgetAnonKiB))
	}
}

// many compares containers beside many others with those beside few or beside the stock shim's.
func (r *Result) many(b *strings.Builder) {
	compare := func(what, with string, base, own []float64, limit string, judge func(median, low, high float64) string) {
		var ratios []float64
		for i := range min(len(base), len(own)) {
			ratios = append(ratios, own[i]/base[i])
		}
		if len(ratios) == 0 {
			return
		}
		median := report.Median(ratios)
		low, high := report.Bootstrap(ratios)
		row(b, what, fmt.Sprintf("%s %.1f ms", with, report.Median(base)), fmt.Sprintf("%.1f ms", report.Median(own)),
			fmt.Sprintf("%.3f (%.3f–%.3f)", median, low, high), limit, judge(median, low, high))
	}
	last := fmt.Sprintf("the last of %d running containers, ", manySize)
	compare(last+stock, "the 10th", r.Many[stock].Tenth, r.Many[stock].Last, "", func(float64, float64, float64) string { return "" })
	compare(last+ours, "the 10th", r.Many[ours].Tenth, r.Many[ours].Last, fmt.Sprintf("≤ %.2f", budgetLast),
		func(median, low, high float64) string { return report.Verdict(median, low, high, budgetLast) })
	compare(fmt.Sprintf("stock container beside %d with a GPU", manySize), fmt.Sprintf("beside %d of stock", manySize),
		r.Many[stock].Beside, r.Many[ours].Beside, "contains 1", contains)
}

func megabytes(n int64) string { return fmt.Sprintf("%.2f MB", float64(n)/1e6) }

// contains accepts a ratio that is less than 1 or cannot be told from 1.
func contains(_, low, _ float64) string {
	if low <= 1 {
		return "pass"
	}
	return "**miss**"
}

func values(m map[int]float64) []float64 { return slices.Collect(maps.Values(m)) }

func mean(list []float64) float64 {
	sum := 0.0
	for _, x := range list {
		sum += x
	}
	return sum / float64(len(list))
}
