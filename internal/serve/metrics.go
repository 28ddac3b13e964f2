package serve

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// Metrics of the present state. A GPU's index and UUID, and a MIG device's "gi/ci", are its labels.
var (
	gpuLabels = []string{"gpu", "uuid"}
	migLabels = []string{"gpu", "mig", "uuid"}
	// Prometheus sets namespace, pod and container to those of the process that it scrapes.
	holderLabels = []string{"holder_namespace", "holder_pod", "holder_container", "id"}

	buildInfo   = desc("build_info", "Version of the program, always 1.", "version", "revision")
	up          = desc("driver_up", "1 if the kernel driver is loaded and its GPUs can be listed.")
	nvmlUp      = desc("nvml_up", "1 if NVML answers.")
	filesUp     = desc("driver_files_up", "1 if the host has the files of the loaded driver; 0 between an upgrade of its packages and the reboot.")
	driverInfo  = desc("driver_info", "Version of the driver, always 1.", "driver_version", "cuda_version")
	gpuInfo     = desc("gpu_info", "A GPU, always 1.", append(gpuLabels, "pci", "model")...)
	gpuError    = desc("gpu_error", "1 if NVML cannot read the GPU.", gpuLabels...)
	watchedUp   = desc("health_watched", "1 if the health of the GPUs is watched.")
	gpuHealth   = desc("gpu_health_state", "Health of a GPU: 0 nothing is known to be wrong, 1 to be serviced, 2 not to be used.", gpuLabels...)
	gpuSick     = desc("gpu_unhealthy_since_timestamp_seconds", "Since when a GPU has been unhealthy, why, and what to do.", append(gpuLabels, "reason", "fix")...)
	gpuXid      = desc("gpu_xid", "Number of the last critical Xid since the driver was loaded, 0 if there was none (DCGM_FI_DEV_XID_ERRORS).", gpuLabels...)
	gpuUsed     = desc("gpu_memory_used_bytes", "Memory of a GPU in use (DCGM_FI_DEV_FB_USED).", gpuLabels...)
	gpuTotal    = desc("gpu_memory_total_bytes", "Memory of a GPU (DCGM_FI_DEV_FB_TOTAL).", gpuLabels...)
	gpuBusy     = desc("gpu_utilization_ratio", "Part of the time in which a GPU is busy, 0 to 1 (DCGM_FI_DEV_GPU_UTIL).", gpuLabels...)
	gpuCelsius  = desc("gpu_temperature_celsius", "Temperature of a GPU (DCGM_FI_DEV_GPU_TEMP).", gpuLabels...)
	gpuPower    = desc("gpu_power_watts", "Power that a GPU draws (DCGM_FI_DEV_POWER_USAGE).", gpuLabels...)
	gpuLimit    = desc("gpu_power_limit_watts", "Power that a GPU may draw (DCGM_FI_DEV_ENFORCED_POWER_LIMIT).", gpuLabels...)
	gpuECC      = desc("gpu_ecc_errors", "ECC errors of a GPU since the driver was loaded (DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, _DBE_).", append(gpuLabels, "kind")...)
	migInfo     = desc("mig_info", "A MIG device, always 1.", append(migLabels, "profile")...)
	migUsed     = desc("mig_memory_used_bytes", "Memory of a MIG device in use.", migLabels...)
	migTotal    = desc("mig_memory_total_bytes", "Memory of a MIG device.", migLabels...)
	holder      = desc("device_holder", "A container that has the GPU, or the MIG device, always 1.", append(migLabels, holderLabels...)...)
	containerUs = desc("container_memory_used_bytes", "GPU memory that the processes of a container use.", holderLabels...)
	useMemory   = desc("container_device_memory_used_bytes", "GPU memory that a container uses on a device. The label from is \"cgroup\" if the driver counts it, or \"processes\" for the sum of those that NVML lists.", slices.Concat(migLabels, holderLabels, []string{"from"})...)
	useLimit    = desc("container_device_memory_limit_bytes", "GPU memory that a container may use on a device at most, if it has a limit.", append(migLabels, holderLabels...)...)
	useRequest  = desc("container_device_memory_request_bytes", "GPU memory that is reserved for a container on a device, if it has a request.", append(migLabels, holderLabels...)...)
	useBusy     = desc("container_device_utilization_ratio", "Part of the last seconds in which the processes of a container kept a GPU busy, 0 to 1, as NVML lists them.", append(migLabels, holderLabels...)...)
	idleSince   = desc("container_idle_since_timestamp_seconds", "Since when the GPUs of a container have done nothing that is suspended for that.", holderLabels...)
	suspended   = desc("container_suspended", "1 if the container is paused and has given its GPUs back.", holderLabels...)
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+name, help, labels, nil)
}

type collector struct{ *Server }

// Describe describes nothing: which metrics there are is known only when they are collected.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics of the present state.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		if m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, v, labels...); err == nil { // the labels are valid UTF-8
			ch <- m
		}
	}
	gauge(buildInfo, 1, version.Version, version.Revision)
	s, err := c.readStatus()
	gauge(up, flag(err == nil))
	if err != nil {
		return
	}
	gauge(nvmlUp, flag(s.NVMLError == ""))
	gauge(filesUp, flag(s.FilesError == ""))
	gauge(watchedUp, flag(s.HealthError == ""))
	gauge(driverInfo, 1, s.DriverVersion, s.CUDAVersion)
	for _, g := range s.GPUs {
		gpu := strconv.Itoa(g.Index)
		gauge(gpuInfo, 1, gpu, g.UUID, g.PCI, g.Model)
		gauge(gpuError, flag(g.Error != ""), gpu, g.UUID)
		sendHealth(gauge, g.Health, gpu, g.UUID)
		sendSensors(gauge, g.Sensors, gpu, g.UUID)
		sendMemory(gauge, gpuUsed, gpuTotal, g.Memory, gpu, g.UUID)
		if g.Utilization != nil && g.Utilization.GPU != nil {
			gauge(gpuBusy, float64(*g.Utilization.GPU)/100, gpu, g.UUID)
		}
		sendHolders(gauge, s, g.Containers, gpu, "", g.UUID)
		for _, m := range g.MIG {
			labels := []string{gpu, strconv.Itoa(m.GI) + "/" + strconv.Itoa(m.CI), m.UUID}
			gauge(migInfo, 1, append(labels, m.Profile)...)
			sendMemory(gauge, migUsed, migTotal, m.Memory, labels...)
			sendHolders(gauge, s, m.Containers, labels...)
		}
	}
	for _, r := range s.Containers {
		if r.Memory != nil {
			gauge(containerUs, float64(*r.Memory), holderOf(r)...)
		}
		sendUses(gauge, r)
		if r.Idle != nil && !r.Idle.Since.IsZero() {
			gauge(idleSince, float64(r.Idle.Since.Unix()), holderOf(r)...)
		}
		gauge(suspended, flag(r.Suspended != nil), holderOf(r)...)
	}
}

func sendHealth(gauge func(*prometheus.Desc, float64, ...string), g *health.GPU, labels ...string) {
	if g == nil {
		return
	}
	state := map[string]float64{health.Warn: 1, health.Refuse: 2}[g.State]
	gauge(gpuHealth, state, labels...)
	if g.IsSick() {
		gauge(gpuSick, float64(g.Since.Unix()), append(slices.Clone(labels), g.Reason, g.Fix)...)
	}
	last := uint64(0)
	if n := len(g.Xids); n > 0 {
		last = g.Xids[n-1].Number
	}
	gauge(gpuXid, float64(last), labels...)
}

func sendSensors(gauge func(*prometheus.Desc, float64, ...string), s *nvml.Sensors, labels ...string) {
	if s == nil {
		return
	}
	if s.Temperature != nil {
		gauge(gpuCelsius, float64(*s.Temperature), labels...)
	}
	if s.Power != nil {
		gauge(gpuPower, float64(*s.Power)/1000, labels...)
	}
	if s.PowerLimit != nil {
		gauge(gpuLimit, float64(*s.PowerLimit)/1000, labels...)
	}
	if s.Corrected != nil && s.Uncorrected != nil {
		gauge(gpuECC, float64(*s.Corrected), append(slices.Clone(labels), "corrected")...)
		gauge(gpuECC, float64(*s.Uncorrected), append(slices.Clone(labels), "uncorrected")...)
	}
}

func sendMemory(gauge func(*prometheus.Desc, float64, ...string), used, total *prometheus.Desc, m *nvml.MemoryState, labels ...string) {
	if m != nil && m.Used != nil && m.Total != nil {
		gauge(used, float64(*m.Used), labels...)
		gauge(total, float64(*m.Total), labels...)
	}
}

func sendUses(gauge func(*prometheus.Desc, float64, ...string), c status.Container) {
	for _, u := range c.Uses {
		gpu, mig, _ := strings.Cut(u.Name, ":")
		labels := slices.Concat([]string{gpu, mig, u.UUID}, holderOf(c))
		if u.Memory != nil {
			gauge(useMemory, float64(*u.Memory), append(slices.Clone(labels), u.From)...)
		}
		if u.Limit != 0 {
			gauge(useLimit, float64(u.Limit), labels...)
		}
		if u.Request != 0 {
			gauge(useRequest, float64(u.Request), labels...)
		}
		if u.Utilization != nil {
			gauge(useBusy, float64(*u.Utilization)/100, labels...)
		}
	}
}

func sendHolders(gauge func(*prometheus.Desc, float64, ...string), s *status.Status, ids []string, labels ...string) {
	for _, c := range s.Containers {
		if slices.Contains(ids, c.ID) {
			gauge(holder, 1, slices.Concat(labels, holderOf(c))...)
		}
	}
}

// holderOf returns the labels of a container. Outside Kubernetes the namespace is containerd's.
func holderOf(c status.Container) []string {
	return []string{cmp.Or(c.PodNamespace, c.Namespace), c.Pod, c.Name, c.ID}
}

func flag(v bool) float64 {
	if v {
		return 1
	}
	return 0
}
