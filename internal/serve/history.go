package serve

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// The page shows the last hour, of at most maxHistories GPUs.
const (
	sampleEvery  = time.Minute // each starts a process that asks NVML
	maxSamples   = int(time.Hour/sampleEvery) + 1
	maxHistories = 64
)

// sample is the state of a GPU at one time. Memory and busy are 0 to 1, or negative if unknown.
type sample struct {
	time         time.Time
	memory, busy float64
}

// history has the samples of each GPU by its PCI address, the oldest first.
type history struct {
	mu   sync.Mutex
	gpus map[string][]sample
}

func (h *history) add(s *status.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gpus == nil {
		h.gpus = map[string][]sample{}
	}
	for _, g := range s.GPUs {
		p := sample{time: s.Time, memory: -1, busy: -1}
		if m := g.Memory; m != nil && m.Used != nil && m.Total != nil && *m.Total > 0 {
			p.memory = min(float64(*m.Used)/float64(*m.Total), 1)
		}
		if g.Utilization != nil && g.Utilization.GPU != nil {
			p.busy = min(float64(*g.Utilization.GPU)/100, 1)
		}
		list, known := h.gpus[g.PCI]
		if !known && len(h.gpus) >= maxHistories {
			continue
		}
		list = append(list, p)
		h.gpus[g.PCI] = append([]sample{}, list[max(0, len(list)-maxSamples):]...)
	}
}

// Size of a chart in its own units: a sample is one wide.
const chartWidth, chartHeight = maxSamples - 1, 40

// line returns the points of a line of the last hour (SVG), or "" if there are fewer than two.
func (h *history) line(pci string, now time.Time, value func(sample) float64) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var points []string
	for _, p := range h.gpus[pci] {
		x := float64(chartWidth) - now.Sub(p.time).Seconds()/sampleEvery.Seconds()
		if v := value(p); v >= 0 && x >= 0 {
			points = append(points, fmt.Sprintf("%.1f,%.1f", min(x, float64(chartWidth)), 1+(chartHeight-2)*(1-v)))
		}
	}
	if len(points) < 2 {
		return ""
	}
	return strings.Join(points, " ")
}
