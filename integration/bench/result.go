package main

import (
	"encoding/json"
	"os"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/bench/report"
)

// Result is everything that a run measured; the page is made from it alone.
type Result struct {
	// Real says that the host's own driver was used and not a simulated one.
	Real bool        `json:"real"`
	Host report.Host `json:"host"`
	// Rounds is how often each case was measured.
	Rounds int    `json:"rounds"`
	Cases  []Case `json:"cases"`
	// Samples are in the order in which they were taken.
	Samples []Sample `json:"samples"`
	// Binaries are bytes, by name.
	Binaries map[string]int64 `json:"binaries"`
	// Burst are containers a second when burstSize are started at once, by way and runtime.
	Burst map[string]map[string][]float64 `json:"burst,omitempty"`
	// Many are containers beside many others, by runtime.
	Many map[string]Many `json:"many,omitempty"`
	// Memory is that of shims with one running container, by runtime.
	Memory map[string][]Memory `json:"memory"`
	// Notes say what was not measured, and why.
	Notes []string `json:"notes"`
}

// Case is one kind of container, with the runtimes that start it.
type Case struct {
	Name string `json:"name"`
	// Against names the variant with which ours is compared: Budget is the largest allowed
	// ratio of create + start, 0 if they must not be told apart.
	Against string  `json:"against,omitempty"`
	Budget  float64 `json:"budget,omitempty"`
	// AddedTo names the case to which this one adds BudgetAdded milliseconds at most.
	AddedTo     string    `json:"added_to,omitempty"`
	BudgetAdded float64   `json:"budget_added,omitempty"`
	Variants    []Variant `json:"variants"`
}

// Variant is one way to start the container of a case.
type Variant struct {
	Name string `json:"name"`

	image   string
	runtime string
	env     []string
	extra   []string
	// gpus is how many the container must have been given by our shim; -1 where the
	// shim must have left the bundle alone.
	gpus int
	// mig is how many MIG devices, of GPUs that do not count.
	mig int
	// nodes are paths of device nodes that it must have.
	nodes []string
	// cold has the shim's state removed before.
	cold bool
	// again has a task made, started and deleted before the one that is measured: the image has
	// the links of the first one.
	again bool
}

// The names of variants that the page compares.
const (
	stock  = "stock"
	ours   = "ours"
	before = "before" // another build of ours
	bare   = "stock, same nodes"

	stockAgain = "stock, again"
)

// Sample is one container, in milliseconds: the Create and Start calls of containerd's task API.
type Sample struct {
	Case    string  `json:"case"`
	Variant string  `json:"variant"`
	Round   int     `json:"round"`
	Create  float64 `json:"create"`
	Start   float64 `json:"start"`
	// CPU is the processor time of the shim, of the runc that it started and of the
	// container's init process until the container runs.
	CPU float64 `json:"cpu,omitempty"`
	// Own is the part of Create before runc, by the clock of our shim.
	Own float64 `json:"own,omitempty"`
}

// Memory is a shim's by /proc/PID/status, in KiB.
type Memory struct {
	RSS  int `json:"rss"`
	Anon int `json:"anon"`
}

// series gives the measured values of a case and variant by round; value says
// which. A value of 0 was not measured.
func (r *Result) series(c, variant string, value func(Sample) float64) map[int]float64 {
	out := map[int]float64{}
	for _, s := range r.Samples {
		if s.Case == c && s.Variant == variant {
			if v := value(s); v > 0 {
				out[s.Round] = v
			}
		}
	}
	return out
}

func (r *Result) store(name string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o644)
}

func load(name string) (*Result, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r := &Result{}
	return r, json.Unmarshal(data, r)
}
