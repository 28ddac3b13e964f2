package report

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Quantile is the q-quantile (0 to 1) of values, linear between neighbours. It is
// NaN without values.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// Median is the middle of values.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// resamples is how often Bootstrap draws.
const resamples = 4000

// Bootstrap is the 95 % percentile interval of the median of values: how far the median would move
// with other rounds. The same values give the same interval.
func Bootstrap(values []float64) (low, high float64) {
	if len(values) == 0 {
		return math.NaN(), math.NaN()
	}
	random := rand.New(rand.NewPCG(1, 2))
	medians := make([]float64, resamples)
	drawn := make([]float64, len(values))
	for i := range medians {
		for j := range drawn {
			drawn[j] = values[random.IntN(len(values))]
		}
		medians[i] = Median(drawn)
	}
	return Quantile(medians, 0.025), Quantile(medians, 0.975)
}

// Combine applies f to what a and b have for the same round.
func Combine(a, b map[int]float64, f func(x, y float64) float64) []float64 {
	var out []float64
	for round, x := range a {
		if y, ok := b[round]; ok {
			out = append(out, f(x, y))
		}
	}
	slices.Sort(out)
	return out
}

// Verdict compares the median with the budget, and says if the rounds do not decide.
func Verdict(value, low, high, budget float64) string {
	v := "pass"
	if value > budget {
		v = "**miss**"
	}
	if low <= budget && budget < high {
		v += ", within the noise"
	}
	return v
}
