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
	// Linker are milliseconds of the linker step alone.
	Linker []float64 `json:"linker"`
	// Binaries are bytes, by name.
	Binaries map[string]int64 `json:"binaries"`
	// Memory is that of shims with one running container, by runtime.
	Memory map[string][]Memory `json:"memory"`
	// Programs are those executed from the create call until the container runs, by
	// runtime; nil where they could not be counted, and Notes say why.
	Programs map[string][]string `json:"programs"`
	// Notes tell what was not measured, and why.
	Notes []string `json:"notes"`
}

// Case is one kind of container, with the runtimes that start it.
type Case struct {
	Name string `json:"name"`
	// Means says what is measured, for the page.
	Means string `json:"means"`
	// Budget is the largest allowed ratio of create + start, 0 without one.
	Budget float64 `json:"budget,omitempty"`
	// BudgetAdded is the largest allowed difference of create + start to the case
	// AddedTo, in milliseconds; 0 without one.
	BudgetAdded float64   `json:"budget_added,omitempty"`
	AddedTo     string    `json:"added_to,omitempty"`
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
	// skipRun leaves the whole `ctr run` out.
	skipRun bool
}

// The names of variants that the page compares.
const (
	stock  = "stock"
	ours   = "ours"
	before = "before" // another build of ours
	bare   = "stock, same nodes"
)

// Sample is one container, in milliseconds: the Create and Start calls of
// containerd's task API, and a whole `ctr run --rm` of another one.
type Sample struct {
	Case    string  `json:"case"`
	Variant string  `json:"variant"`
	Round   int     `json:"round"`
	Create  float64 `json:"create"`
	Start   float64 `json:"start"`
	Run     float64 `json:"run,omitempty"`
	// CPU is the processor time of the shim, of the runc that it started and of the
	// container's init process until the container runs.
	CPU float64 `json:"cpu,omitempty"`
}

// Memory is what /proc/PID/status says of a shim, in KiB.
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
