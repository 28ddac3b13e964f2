package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/bench/report"
)

// publish prints the generated part and puts it into the page out, if there is to
// be one. A simulated and a real run have a part each.
func publish(r *Result, out string, w io.Writer) error {
	text := r.markdown()
	fmt.Fprint(w, text)
	if out == "" {
		return nil
	}
	return report.WritePart(out, r.part(), "integration/bench", text)
}

func (r *Result) part() string {
	if r.Real {
		return "real"
	}
	return "simulated"
}

// steps are what is timed of a container.
var steps = []struct {
	name  string
	value func(Sample) float64
}{
	{"create", func(s Sample) float64 { return s.Create }},
	{"start", func(s Sample) float64 { return s.Start }},
	{both, func(s Sample) float64 { return s.Create + s.Start }},
	{"`ctr run --rm`", func(s Sample) float64 { return s.Run }},
}

// both is the step that has a budget.
const both = "create + start"

// markdown is the generated part.
func (r *Result) markdown() string {
	var b strings.Builder
	b.WriteString(r.host())
	b.WriteString("\n")
	r.latency(&b)
	r.processors(&b)
	r.budgets(&b)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "\nNot measured: %s\n", n)
	}
	return b.String()
}

func (r *Result) host() string {
	h := r.Host
	driver := fmt.Sprintf("Simulated driver %s with %d GPUs", h.Driver, h.GPUs)
	if r.Real {
		driver = fmt.Sprintf("NVIDIA driver %s with %d GPUs", h.Driver, h.GPUs)
	}
	return h.Line(driver, r.Rounds)
}

// latency is the table of the cases with a stock shim to compare with.
func (r *Result) latency(b *strings.Builder) {
	b.WriteString("| container | runtime | step | stock, ms | ms | p90, ms | ratio | 95 % interval | budget | |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range r.Cases {
		for _, v := range c.Variants {
			if v.Name == stock {
				continue
			}
			for _, step := range steps {
				base, own := r.series(c.Name, stock, step.value), r.series(c.Name, v.Name, step.value)
				ratios := report.Combine(own, base, func(x, y float64) float64 { return x / y })
				if len(ratios) == 0 {
					continue
				}
				low, high := report.Bootstrap(ratios)
				limit, result := "", ""
				if c.Budget > 0 && step.name == both && v.Name == ours {
					limit, result = fmt.Sprintf("≤ %.2f", c.Budget), verdict(report.Median(ratios), low, high, c.Budget)
				}
				fmt.Fprintf(b, "| %s | %s | %s | %.1f | %.1f | %.1f | %.3f | %.3f – %.3f | %s | %s |\n",
					c.Name, v.Name, step.name, report.Median(values(base)), report.Median(values(own)), report.Quantile(values(own), 0.9),
					report.Median(ratios), low, high, limit, result)
			}
		}
	}
}

// processors is the table of processor time, which tells builds apart where the clock
// shows what else the host does.
func (r *Result) processors(b *strings.Builder) {
	b.WriteString("\n| container | runtime | processor time of shim, runc and init, ms (mean) |\n|---|---|---|\n")
	for _, c := range r.Cases {
		for _, v := range c.Variants {
			used := values(r.series(c.Name, v.Name, func(s Sample) float64 { return s.CPU }))
			if len(used) == 0 {
				continue
			}
			sum := 0.0
			for _, n := range used {
				sum += n
			}
			fmt.Fprintf(b, "| %s | %s | %.1f |\n", c.Name, v.Name, sum/float64(len(used)))
		}
	}
}

// budgets is the table of everything else.
func (r *Result) budgets(b *strings.Builder) {
	b.WriteString("\n| what | stock | this shim | | budget | |\n|---|---|---|---|---|---|\n")
	row := func(what, base, own, compared, limit, result string) {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s |\n", what, base, own, compared, limit, result)
	}
	for _, c := range r.Cases {
		if c.BudgetAdded == 0 {
			continue
		}
		value := steps[2].value
		warm, cold := r.series(c.AddedTo, ours, value), r.series(c.Name, ours, value)
		added := report.Combine(cold, warm, func(x, y float64) float64 { return x - y })
		if len(added) == 0 {
			continue
		}
		low, high := report.Bootstrap(added)
		row(both+", "+c.Name, "", fmt.Sprintf("%.1f ms", report.Median(values(cold))),
			fmt.Sprintf("%+.1f ms (%.1f – %.1f)", report.Median(added), low, high),
			fmt.Sprintf("≤ %.0f ms added", c.BudgetAdded), verdict(report.Median(added), low, high, c.BudgetAdded))
	}
	if len(r.Linker) > 0 {
		low, high := report.Bootstrap(r.Linker)
		row("linker step, 5,000 libraries", "", fmt.Sprintf("%.2f ms, p90 %.2f", report.Median(r.Linker), report.Quantile(r.Linker, 0.9)), "",
			fmt.Sprintf("≤ %d ms", budgetLinkerMS), verdict(report.Median(r.Linker), low, high, budgetLinkerMS))
	}
	if r.Programs != nil {
		extra := len(r.Programs[ours]) - len(r.Programs[stock])
		row("programs executed, create and start", fmt.Sprint(len(r.Programs[stock])), fmt.Sprint(len(r.Programs[ours])),
			fmt.Sprintf("%+d", extra), fmt.Sprintf("+%d", budgetExecutions), verdict(float64(extra), float64(extra), float64(extra), budgetExecutions))
	}
	if len(r.Binaries) > 0 {
		base, own := r.Binaries["containerd-shim-runc-v2"], r.Binaries["containerd-shim-nvidia-v2"]
		row("binary", megabytes(base), megabytes(own), fmt.Sprintf("%.2f ×", float64(own)/float64(base)),
			"≤ "+megabytes(budgetBinary), verdict(float64(own), float64(own), float64(own), budgetBinary))
	}
	for _, m := range []struct {
		name   string
		value  func(Memory) float64
		budget float64
	}{
		{"resident memory of the shim (VmRSS), one running GPU container", func(m Memory) float64 { return float64(m.RSS) }, budgetMemory},
		{"of that, anonymous (RssAnon)", func(m Memory) float64 { return float64(m.Anon) }, 0},
	} {
		median := func(runtime string) float64 {
			var values []float64
			for _, x := range r.Memory[runtime] {
				values = append(values, m.value(x))
			}
			return report.Median(values)
		}
		for _, own := range []string{ours, before} {
			if len(r.Memory[stock]) == 0 || len(r.Memory[own]) == 0 {
				continue
			}
			name, limit, result := m.name, "", ""
			ratio := median(own) / median(stock)
			switch {
			case own == before:
				name += ", " + before
			case m.budget > 0:
				limit, result = fmt.Sprintf("≤ %.2f ×", m.budget), verdict(ratio, ratio, ratio, m.budget)
			}
			row(name, fmt.Sprintf("%.1f MiB", median(stock)/1024), fmt.Sprintf("%.1f MiB", median(own)/1024), fmt.Sprintf("%.2f ×", ratio), limit, result)
		}
	}
	if r.Programs != nil {
		fmt.Fprintf(b, "\nPrograms executed by the stock shim: %s; by this shim: %s.\n", list(r.Programs[stock]), list(r.Programs[ours]))
	}
}

func megabytes(n int64) string { return fmt.Sprintf("%.2f MB", float64(n)/1e6) }

// list is programs in the order of their names, as the order in which two of them
// were seen to start is chance.
func list(programs []string) string {
	return "`" + strings.Join(slices.Sorted(slices.Values(programs)), "`, `") + "`"
}

// verdict compares the median with the budget, and says where the rounds do not
// decide.
func verdict(value, low, high, budget float64) string {
	v := "pass"
	if value > budget {
		v = "**miss**"
	}
	if low <= budget && budget < high {
		v += ", within the noise"
	}
	return v
}

func values(m map[int]float64) []float64 { return slices.Collect(maps.Values(m)) }
