// Package report is what the benchmarks share: statistics over rounds, the host in
// words, and the generated parts of docs/benchmarks.md.
//
// In: measured values. Out: medians, quantiles and intervals, a sentence, and the page
// with the text between a part's markers replaced.
//
// It must never measure anything.
package report
