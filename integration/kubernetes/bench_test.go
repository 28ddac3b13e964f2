package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/bench/report"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// benchPage names the page that BenchmarkPodContainer writes its tables into.
const benchPage = "NVIDIA_SHIM_BENCH_PAGE"

// benchPart is the part of the page, and benchDriver the kind of driver that it names.
var benchPart, benchDriver = "kubernetes", "simulated driver"

// Rows of the tables that are compared with each other.
const (
	withNodes    = "one GPU, ours, device nodes in the request"
	withFile     = "one GPU, ours, the kubelet's checkpoint is read"
	withQuestion = "one GPU, ours, the kubelet is asked"
)

// budgetFile is the budget of withFile, as a ratio to the stock shim without a GPU.
const budgetFile = 1.08

// measured is one kind of container of BenchmarkPodContainer.
type measured struct {
	name    string
	pod     *benchPod
	envs    []*cri.KeyValue
	devices []*cri.Device
	grant   string // how the shim's record of what it granted begins; empty for no record
	// ask is true if the kubelet's checkpoint is away, so that its API has to be asked.
	ask bool
}

// benchPod is a pod that the kubelet runs, in whose sandbox containers are measured.
type benchPod struct {
	*corev1.Pod
	sandbox  string
	config   *cri.PodSandboxConfig
	attempts uint32 // 0 is the kubelet's own container
}

// BenchmarkPodContainer compares the cost of a pod's container under CRI with the stock shim, and
// measures what the kubelet's answer costs: -benchtime 30x is 30 rounds. Each round takes every
// kind of container once, in random order. With the tag gpu, the GPUs are the host's real ones.
func BenchmarkPodContainer(b *testing.B) {
	c := shared
	stockPod, pod := newPod("bench-stock", wait("main", plainImage)), newPod("bench", with(wait("main", plainImage), 1))
	stockPod.Spec.RuntimeClassName = nil
	stock, ours := c.benchPod(b, stockPod), c.benchPod(b, pod)
	// As the kubelet passes on what the device plugin answers.
	allocated := (&plugin{driver: c.Driver, strategy: strategy{list: envvar, devices: true}}).respond(c.allocated(b, pod, "main"))
	var envs []*cri.KeyValue
	for key, value := range allocated.Envs {
		envs = append(envs, &cri.KeyValue{Key: key, Value: []byte(value)})
	}
	var devices []*cri.Device
	for _, d := range allocated.Devices {
		devices = append(devices, &cri.Device{ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: d.Permissions})
	}
	kinds := []measured{
		{name: "no GPU, stock", pod: stock},
		{name: "no GPU, stock, again", pod: stock},
		{name: "no GPU, ours", pod: ours},
		{name: withNodes, pod: ours, envs: envs, devices: devices, grant: "in the container's specification"},
		{name: withFile, pod: ours, envs: envs, grant: "allocated by the kubelet"},
		{name: withQuestion, pod: ours, envs: envs, grant: "allocated by the kubelet", ask: true},
	}
	for _, k := range kinds {
		c.measure(b, k) // what only the first container pays, such as the view
	}
	times := map[string]map[int]float64{}
	for _, k := range kinds {
		times[k.name] = map[int]float64{}
	}
	rounds := 0
	for b.Loop() {
		for _, i := range rand.Perm(len(kinds)) {
			times[kinds[i].name][rounds] = c.measure(b, kinds[i])
		}
		rounds++
	}
	b.ReportMetric(0, "ns/op") // the time of a whole round means nothing

	text := c.benchHost(b, rounds) + tables(kinds, times)
	fmt.Print("\n" + text)
	if page := os.Getenv(benchPage); page != "" {
		if err := report.WritePart(page, benchPart, "integration/kubernetes", text); err != nil {
			b.Fatal(err)
		}
	}
}

// tables are the times of each kind of container, by name and round. The first kind is
// what the others are compared with.
func tables(kinds []measured, times map[string]map[int]float64) string {
	var text strings.Builder
	text.WriteString("\n| container | ms | ratio | budget | |\n|---|---|---|---|---|\n")
	for i, k := range kinds {
		fmt.Fprintf(&text, "| %s | %.1f |", k.name, report.Median(slices.Collect(maps.Values(times[k.name]))))
		if i == 0 {
			text.WriteString("  |  |  |\n")
			continue
		}
		ratios := report.Combine(times[k.name], times[kinds[0].name], func(x, y float64) float64 { return x / y })
		low, high := report.Bootstrap(ratios)
		budget, verdict := "", ""
		if k.name == withFile {
			budget, verdict = fmt.Sprintf("≤ %.2f", budgetFile), report.Verdict(report.Median(ratios), low, high, budgetFile)
		}
		fmt.Fprintf(&text, " %.3f (%.3f–%.3f) | %s | %s |\n", report.Median(ratios), low, high, budget, verdict)
	}
	return text.String()
}

// benchHost is the line above the tables.
func (c *cluster) benchHost(b *testing.B, rounds int) string {
	b.Helper()
	node, err := c.node()
	if err != nil {
		b.Fatal(err)
	}
	h := report.DescribeHost(testenv.ShimDir(), c.Options.ToolsDir, c.Options.Cgroup)
	return h.Line(fmt.Sprintf("Kubernetes %s, %s %s with %d GPUs",
		node.Status.NodeInfo.KubeletVersion, benchDriver, c.Driver.KernelVersion, len(c.Driver.GPUs)), rounds)
}

// benchPod creates the pod, waits until it runs and finds its sandbox.
func (c *cluster) benchPod(b *testing.B, pod *corev1.Pod) *benchPod {
	b.Helper()
	c.create(b, pod)
	c.awaitRunning(b, pod)
	sandbox := c.sandbox(b, pod)
	// A container is made with the configuration that its sandbox was made with.
	status, err := c.runtime.PodSandboxStatus(b.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true})
	if err != nil {
		b.Fatal(err)
	}
	var info struct {
		Config *cri.PodSandboxConfig `json:"config"`
	}
	if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil || info.Config.GetMetadata().GetName() != pod.Name {
		b.Fatalf("the sandbox of pod %s is made with %v: %v", pod.Name, info.Config, err)
	}
	return &benchPod{Pod: pod, sandbox: sandbox, config: info.Config}
}

// measure starts a container and removes it, and returns the milliseconds from the
// request to create it until it runs.
func (c *cluster) measure(b *testing.B, k measured) float64 {
	b.Helper()
	p := k.pod
	p.attempts++
	config := &cri.ContainerConfig{
		// The shim asks the kubelet by this name. By its labels the kubelet considers it a
		// container of this pod, which it does not kill, but not the pod's own, which it would
		// replace.
		Metadata: &cri.ContainerMetadata{Name: "main", Attempt: p.attempts},
		Labels: map[string]string{
			"io.kubernetes.container.name": "measured", "io.kubernetes.pod.name": p.Name,
			"io.kubernetes.pod.namespace": p.Namespace, "io.kubernetes.pod.uid": p.config.Metadata.Uid,
		},
		Image: &cri.ImageSpec{Image: plainImage}, Command: p.Spec.Containers[0].Command,
		Envs: k.envs, Devices: k.devices,
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
			NamespaceOptions: p.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
	if k.ask {
		if err := os.Rename(checkpointFile, checkpointFile+".away"); err != nil {
			b.Fatal(err)
		}
		defer func() {
			if err := os.Rename(checkpointFile+".away", checkpointFile); err != nil {
				b.Error(err)
			}
		}()
	}
	var id string
	took := timed(b, func() error {
		created, err := c.runtime.CreateContainer(b.Context(), &cri.CreateContainerRequest{PodSandboxId: p.sandbox, Config: config, SandboxConfig: p.config})
		if err != nil {
			return err
		}
		id = created.ContainerId
		_, err = c.runtime.StartContainer(b.Context(), &cri.StartContainerRequest{ContainerId: id})
		return err
	})
	if plan, given := c.record(b, id); given != (k.grant != "") || !strings.HasPrefix(plan.Grant, k.grant) {
		b.Errorf("%s: record %v: grant %q, want %q", k.name, given, plan.Grant, k.grant)
	}
	if _, err := c.runtime.RemoveContainer(b.Context(), &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
		b.Error(err)
	}
	return took
}

// timed returns how many milliseconds fn took.
func timed(b *testing.B, fn func() error) float64 {
	b.Helper()
	began := time.Now()
	err := fn()
	took := time.Since(began)
	if err != nil {
		b.Fatal(err)
	}
	return float64(took.Microseconds()) / 1000
}
