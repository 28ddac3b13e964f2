package serve

import (
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
)

type counters struct {
	creations, refusals   *prometheus.CounterVec
	coldViews, probes     prometheus.Counter
	suspended             prometheus.Counter
	creation, preparation prometheus.Histogram
}

func newCounters() counters {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: prefix + name, Help: help}
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets})
	}
	c := counters{
		creations: prometheus.NewCounterVec(counter("creations_total", "Containers created that asked for GPUs, by whether they got one."), []string{"gpu"}),
		refusals:  prometheus.NewCounterVec(counter("refusals_total", "Containers refused that asked for GPUs, by gRPC code; \"runtime\" is a failure of runc or containerd."), []string{"reason"}),
		coldViews: prometheus.NewCounter(counter("cold_views_total", "Views of driver files built because the host did not have them.")),
		probes:    prometheus.NewCounter(counter("probe_failures_total", "Questions that NVML or the kubelet did not answer.")),
		suspended: prometheus.NewCounter(counter("idle_suspensions_total", "Containers suspended because they were idle.")),
		creation: histogram("create_duration_seconds", "Duration of the creation of a container that asked for GPUs.",
			[]float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}),
		preparation: histogram("prepare_duration_seconds", "Part of the creation before runc: deciding, links, linker files, config.json.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}),
	}
	for _, class := range classes {
		c.refusals.WithLabelValues(class)
	}
	c.creations.WithLabelValues("true")
	c.creations.WithLabelValues("false")
	return c
}

func (c *counters) all() []prometheus.Collector {
	return []prometheus.Collector{c.creations, c.refusals, c.coldViews, c.probes, c.suspended, c.creation, c.preparation}
}

func (c *counters) add(e state.Event) {
	switch e.Kind {
	case state.Created:
		c.creations.WithLabelValues(strconv.FormatBool(e.GPU)).Inc()
		c.creation.Observe(e.Seconds)
		if e.OwnSeconds > 0 {
			c.preparation.Observe(e.OwnSeconds)
		}
	case state.Refused:
		if !slices.Contains(classes, e.Class) {
			e.Class = classes[len(classes)-1]
		}
		c.refusals.WithLabelValues(e.Class).Inc()
	case state.ViewBuilt:
		c.coldViews.Inc()
	case state.ProbeFailed:
		c.probes.Inc()
	case state.Suspended:
		c.suspended.Inc()
	}
}

// prefix begins the name of every metric.
const prefix = "nvidia_shim_"

// classes are the values of the label "reason"; any other class is counted under the last one.
var classes = []string{"internal", "invalid_argument", "failed_precondition", "permission_denied", "runtime"}
