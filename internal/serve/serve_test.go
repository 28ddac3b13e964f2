package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/runargs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

const gib = 1 << 30

func ref[T any](v T) *T { return &v }

func memory(used, total uint64) *nvml.MemoryState {
	return &nvml.MemoryState{Used: &used, Total: &total}
}

// example has a GPU that a pod holds, one with a MIG device that a container holds, and one that
// NVML cannot read.
func example() *status.Status {
	uses := []status.DeviceUse{{Name: "0", UUID: "GPU-0", From: status.FromCgroup, Limit: 8 * gib, Request: gib, Memory: ref(uint64(3 * gib)), Utilization: ref(uint32(20)), Processes: 1}}
	idle := &status.Idle{Since: time.Unix(1764331200, 0), Reason: "it could not be suspended: \"why\""}
	pod := status.Container{Idle: idle, Memory: ref(uint64(3 * gib)), Uses: uses, Record: status.Record{PlanContainer: gpuinject.PlanContainer{
		ID: "c1", Namespace: "k8s.io", PodNamespace: "team", Pod: `<b>"train"`, Name: "main"}}}
	plain := status.Container{Idle: &status.Idle{Suspended: true}, Record: status.Record{Suspended: ref(time.Now()), PlanContainer: gpuinject.PlanContainer{ID: "c2", Namespace: "default"}}}
	process := status.Process{Process: nvml.Process{PID: 42, Type: "C", Memory: ref(uint64(3 * gib))}, Name: "train", Container: "c1"}
	return &status.Status{
		DriverVersion: "580.1", CUDAVersion: "13.0", Containers: []status.Container{pod, plain},
		GPUs: []status.GPU{
			{PlanGPU: gpuinject.PlanGPU{Index: 0, Minor: 2, UUID: "GPU-0", PCI: "0000:01:00.0"}, Model: "NVIDIA H200", Utilization: &nvml.Utilization{GPU: ref(uint32(25))},
				Sensors: &nvml.Sensors{Temperature: ref(uint32(41)), Power: ref(uint32(118400)), PowerLimit: ref(uint32(700000)), Corrected: ref(uint64(3)), Uncorrected: ref(uint64(1))},
				Use:     status.Use{Memory: memory(4*gib, 140*gib), Containers: []string{"c1"}, Processes: []status.Process{process}}},
			{PlanGPU: gpuinject.PlanGPU{Index: 1, Minor: 0, UUID: "GPU-1", PCI: "0000:02:00.0"}, Model: "NVIDIA H200", Use: status.Use{Containers: []string{}},
				MIG: []status.MIG{{UUID: "MIG-1", GI: 9, CI: 0, Profile: "1g.18gb", Use: status.Use{Memory: memory(gib, 16*gib), Containers: []string{"c2"}}}}},
			{PlanGPU: gpuinject.PlanGPU{Index: 2, Minor: 1, UUID: "GPU-2", PCI: "0000:03:00.0"}, Error: "GPU is lost"},
		},
	}
}

// fixture is a server with a state directory, and a status that a test may replace.
type fixture struct {
	*testing.T
	http.Handler
	state  *state.State
	status func() (*status.Status, error)
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	st, err := state.Open(filepath.Join(t.TempDir(), "state"), false)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, state: st, status: func() (*status.Status, error) { return example(), nil }}
	f.restart()
	return f
}

func (f *fixture) restart() {
	f.Handler = New(Options{
		StateDir: func() string { return f.state.Dir() }, Loopback: true,
		Status: func() (*status.Status, error) { return f.status() },
		DockerArgs: func(devices string) (*runargs.Args, error) {
			if devices == "9" {
				return nil, errors.New("unknown GPU")
			}
			return &runargs.Args{Args: []string{"--device=" + devices, "--env=A=b"}, Files: []place.Bind{{Source: "/a", Destination: "/b"}}, Devices: []place.Bind{{Source: "/dev/nvidia0"}}}, nil
		},
	})
}

func (f *fixture) do(method, path, host string) *http.Response {
	r := httptest.NewRequest(method, path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w.Result()
}

func (f *fixture) get(path string) string {
	f.Helper()
	r := f.do(http.MethodGet, path, "127.0.0.1:3476")
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		f.Fatalf("%s: %s, %v, %s", path, r.Status, err, body)
	}
	return string(body)
}

func (f *fixture) want(path string, texts ...string) {
	f.Helper()
	got := f.get(path)
	for _, text := range texts {
		if !strings.Contains(got, text) {
			f.Errorf("%s: no %q in\n%s", path, text, got)
		}
	}
}

func TestMetricsOfThePresentState(t *testing.T) {
	f := newFixture(t)
	f.want("/metrics",
		"nvidia_shim_driver_up 1\n", "nvidia_shim_nvml_up 1\n", "nvidia_shim_driver_files_up 1\n", `nvidia_shim_driver_info{cuda_version="13.0",driver_version="580.1"} 1`,
		`nvidia_shim_gpu_info{gpu="1",model="NVIDIA H200",pci="0000:02:00.0",uuid="GPU-1"} 1`,
		`nvidia_shim_gpu_memory_used_bytes{gpu="0",uuid="GPU-0"} 4.294967296e+09`, `nvidia_shim_gpu_utilization_ratio{gpu="0",uuid="GPU-0"} 0.25`,
		`nvidia_shim_gpu_temperature_celsius{gpu="0",uuid="GPU-0"} 41`, `nvidia_shim_gpu_power_watts{gpu="0",uuid="GPU-0"} 118.4`,
		`nvidia_shim_gpu_power_limit_watts{gpu="0",uuid="GPU-0"} 700`, `nvidia_shim_gpu_ecc_errors{gpu="0",kind="uncorrected",uuid="GPU-0"} 1`,
		`nvidia_shim_gpu_error{gpu="0",uuid="GPU-0"} 0`, `nvidia_shim_gpu_error{gpu="2",uuid="GPU-2"} 1`,
		`nvidia_shim_mig_memory_total_bytes{gpu="1",mig="9/0",uuid="MIG-1"} 1.7179869184e+10`,
		`nvidia_shim_device_holder{gpu="0",holder_container="main",holder_namespace="team",holder_pod="<b>\"train\"",id="c1",mig="",uuid="GPU-0"} 1`,
		`nvidia_shim_device_holder{gpu="1",holder_container="",holder_namespace="default",holder_pod="",id="c2",mig="9/0",uuid="MIG-1"} 1`,
		`nvidia_shim_container_memory_used_bytes{holder_container="main",holder_namespace="team",holder_pod="<b>\"train\"",id="c1"} 3.221225472e+09`,
		`nvidia_shim_container_device_memory_used_bytes{from="cgroup",gpu="0",holder_container="main",holder_namespace="team",holder_pod="<b>\"train\"",id="c1",mig="",uuid="GPU-0"} 3.221225472e+09`,
		`nvidia_shim_container_device_memory_limit_bytes{gpu="0",holder_container="main",holder_namespace="team",holder_pod="<b>\"train\"",id="c1",mig="",uuid="GPU-0"} 8.589934592e+09`,
		`nvidia_shim_container_device_memory_request_bytes{gpu="0",holder_container="main",holder_namespace="team",holder_pod="<b>\"train\"",id="c1",mig="",uuid="GPU-0"} 1.073741824e+09`,
		`nvidia_shim_container_device_utilization_ratio{gpu="0",holder_container="main",holder_namespace="team",holder_pod="<b>\"train\"",id="c1",mig="",uuid="GPU-0"} 0.2`,
		`nvidia_shim_container_suspended{holder_container="",holder_namespace="default",holder_pod="",id="c2"} 1`,
		`nvidia_shim_container_idle_since_timestamp_seconds{holder_container="main",holder_namespace="team",holder_pod="<b>\"train\"",id="c1"} 1.7643312e+09`, "nvidia_shim_idle_suspensions_total 0\n",
		// Rates need a first value.
		`nvidia_shim_refusals_total{reason="permission_denied"} 0`, `nvidia_shim_creations_total{gpu="true"} 0`)
	for _, line := range strings.Split(f.get("/metrics"), "\n") {
		if strings.Contains(line, `uuid="GPU-2"`) && strings.Contains(line, "memory") {
			t.Errorf("an unknown value is a number: %s", line)
		}
	}
	upgraded := example()
	upgraded.FilesError = "libcuda.so.580.1 was not found"
	f.status = func() (*status.Status, error) { return upgraded, nil }
	f.restart()
	f.want("/metrics", "nvidia_shim_driver_files_up 0\n", "nvidia_shim_driver_up 1\n")
	f.status = func() (*status.Status, error) { return nil, errors.New("no NVIDIA driver is loaded") }
	f.restart()
	f.want("/metrics", "nvidia_shim_driver_up 0\n", "nvidia_shim_cold_views_total 0\n")
	f.want("/", "no NVIDIA driver is loaded")
	if r := f.do(http.MethodGet, "/gpu/info", "localhost"); r.StatusCode != http.StatusServiceUnavailable {
		t.Error(r.Status)
	}
}

func TestEventsAreCounted(t *testing.T) {
	f := newFixture(t)
	f.state.AddEvent(state.Event{Kind: state.Created, GPU: true, Seconds: 0.03, OwnSeconds: 0.004})
	f.state.AddEvent(state.Event{Kind: state.Refused, Class: "permission_denied", Reason: "<script>no grant", Who: "team/a"})
	want := []string{
		`nvidia_shim_creations_total{gpu="true"} 1`, `nvidia_shim_refusals_total{reason="permission_denied"} 1`,
		`nvidia_shim_create_duration_seconds_bucket{le="0.025"} 0`, `nvidia_shim_create_duration_seconds_bucket{le="0.05"} 1`,
		`nvidia_shim_prepare_duration_seconds_count 1`,
	}
	f.want("/metrics", want...)
	f.want("/metrics", want...) // once
	f.restart()
	f.want("/metrics", want...) // all events are there
	for range 150 {
		f.state.AddEvent(state.Event{Kind: state.Refused, Class: "any text", Who: "other"})
	}
	f.state.AddEvent(state.Event{Kind: state.ViewBuilt})
	f.state.AddEvent(state.Event{Kind: state.ProbeFailed})
	f.want("/metrics", `nvidia_shim_refusals_total{reason="runtime"} 150`, "nvidia_shim_cold_views_total 1", "nvidia_shim_probe_failures_total 1")
	if page := f.get("/"); strings.Count(page, "<b>other</b>") != 1 || !strings.Contains(page, "</code> 100 times<p>") {
		t.Errorf("%s", page)
	}
}

func TestRefusalsAreThoseOfTheLastHour(t *testing.T) {
	f := newFixture(t)
	var lines []byte
	for _, e := range []struct {
		who string
		age time.Duration
	}{{"before", 61 * time.Minute}, {"lately", 59 * time.Minute}} {
		line, err := json.Marshal(state.Event{Time: time.Now().Add(-e.age), Kind: state.Refused, Class: "runtime", Who: e.who})
		if err != nil {
			t.Fatal(err)
		}
		lines = append(append(lines, line...), '\n')
	}
	if err := os.WriteFile(filepath.Join(f.state.Dir(), "events.jsonl"), lines, 0o600); err != nil {
		t.Fatal(err)
	}
	f.want("/metrics", `nvidia_shim_refusals_total{reason="runtime"} 2`)
	f.want("/", "<b>lately</b>")
	if page := f.get("/"); strings.Contains(page, "<b>before</b>") {
		t.Errorf("a refusal of more than an hour ago:\n%s", page)
	}
}

// Without honor_labels, Prometheus renames labels that it sets itself for the process that it scrapes.
func TestNoLabelIsOneOfTheScrapes(t *testing.T) {
	f := newFixture(t)
	f.state.AddEvent(state.Event{Kind: state.Created, GPU: true, Seconds: 0.03})
	text := f.get("/metrics")
	for _, label := range []string{"namespace", "pod", "container", "node", "service", "endpoint", "job", "instance"} {
		if regexp.MustCompile(`[{,]` + label + `="`).MatchString(text) {
			t.Errorf("a metric has the label %s", label)
		}
	}
}

// Names, units and types are those that Prometheus recommends.
func TestMetricsFollowTheConventions(t *testing.T) {
	f := newFixture(t)
	f.state.AddEvent(state.Event{Kind: state.Created, GPU: true, Seconds: 0.03})
	problems, err := promlint.New(strings.NewReader(f.get("/metrics"))).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestThePage(t *testing.T) {
	f := newFixture(t)
	f.state.AddEvent(state.Event{Kind: state.Refused, Class: "permission_denied", Reason: "<script>no grant", Who: "team/a"})
	f.want("/", "<h3>GPU 0 <span>NVIDIA H200</span></h3>", "<b>team/&lt;b&gt;&#34;train&#34;</b>", "4096 of 143360 MiB", "Busy 25 %", "<span>3072 of at most 8192 MiB, 1024 reserved, counted by the driver, busy 20 %</span>", `<line x1="8192" y1="0" x2="8192" y2="1"/>`, "MIG 1:9/0", "GPU is lost",
		"Partitioned into MIG devices", "permission_denied", "&lt;script&gt;no grant")
	r := f.do(http.MethodGet, "/", "[::1]:3476")
	if got := r.Header.Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none';") || strings.Contains(got, "unsafe") {
		t.Errorf("policy %q", got)
	}
}

// The last hour is there once there are two samples, and bounded.
func TestThePageHasTheLastHour(t *testing.T) {
	f := newFixture(t)
	f.want("/", "41°C, 118/700 W, ECC errors: 3, 1 uncorrected, last Xid: -", "<li>train (42) in team/&lt;b&gt;&#34;train&#34; 3072 MiB</li>", "<h2>Suspended</h2>", "because it was idle</li>",
		"<h2>Suspended when idle</h2>", "</time>, it could not be suspended: &#34;why&#34;</li>")
	if page := f.get("/"); strings.Contains(page, "<figure") {
		t.Error("a history without samples")
	}
	var h history
	now := time.Now()
	for i := range 3 * maxSamples {
		s := example()
		s.Time = now.Add(time.Duration(i-3*maxSamples+1) * sampleEvery)
		h.add(s)
	}
	if n := len(h.gpus["0000:01:00.0"]); n != maxSamples {
		t.Errorf("%d samples", n)
	}
	busy := h.line("0000:01:00.0", now, func(p sample) float64 { return p.busy })
	if !strings.HasPrefix(busy, "0.0,29.5 1.0,29.5 ") || !strings.HasSuffix(busy, " 60.0,29.5") {
		t.Errorf("%q", busy)
	}
	if line := h.line("0000:03:00.0", now, func(p sample) float64 { return p.memory }); line != "" {
		t.Errorf("of unknown values: %q", line)
	}
	for i := range 2 * maxHistories {
		s := example()
		s.GPUs[0].PCI = strconv.Itoa(i)
		h.add(s)
	}
	if n := len(h.gpus); n != maxHistories {
		t.Errorf("%d GPUs", n)
	}
	server := f.Handler.(*Server)
	for i := range 2 {
		s := example()
		s.Time = now.Add(time.Duration(i-2) * sampleEvery)
		server.history.add(s)
	}
	f.want("/", `<polyline class="memory-line" points="58.0,`, fmt.Sprintf(`viewBox="0 0 %d %d"`, chartWidth, chartHeight))
}

func TestNVIDIADocker1(t *testing.T) {
	f := newFixture(t)
	f.want("/gpu/info", "Driver version:          580.1\n", "Device #0\n  Model:     NVIDIA H200\n", "/dev/nvidia2", "Memory:    - MiB")
	f.want("/gpu/status", "Utilization:  25 %\n  Memory:       4096 / 143360 MiB\n  Process:      PID 42, train, 3072 MiB\n", "Utilization:  - %")
	var info dockerInfo
	var live dockerStatus
	for path, v := range map[string]any{"/v1.0/gpu/info/json": &info, "/gpu/status/json": &live} {
		if err := json.Unmarshal([]byte(f.get(path)), v); err != nil {
			t.Error(err)
		}
	}
	if info.Version.CUDA != "13.0" || len(info.Devices) != 3 || info.Devices[1].PCI.BusID != "0000:02:00.0" || *info.Devices[0].Memory.Global != 140<<10 {
		t.Errorf("%+v", info)
	}
	if len(live.Devices) != 3 || *live.Devices[0].Utilization.GPU != 25 || live.Devices[0].Processes[0].PID != 42 || live.Devices[2].Memory.GlobalUsed != nil {
		t.Errorf("%+v", live)
	}
	for query, want := range map[string]string{"": "all", "?dev=*": "all", "?dev=0+1&vol=nvidia_driver": "0,1", "?dev=GPU-1": "GPU-1"} {
		if got := f.get("/docker/cli" + query); got != "--device="+want+" --env=A=b" {
			t.Errorf("%s: %q", query, got)
		}
	}
	f.want("/docker/cli/json", `{"VolumeDriver":"","Volumes":["/a:/b:ro"],"Devices":["/dev/nvidia0"]}`)
	if r := f.do(http.MethodGet, "/docker/cli?dev=9", "localhost"); r.StatusCode != http.StatusBadRequest {
		t.Error(r.Status)
	}
	f.want("/mesos/cli", "--attributes=gpus:eJ", " --resources=gpus:{GPU-0,GPU-1,GPU-2}")
}

func TestRequestsThatAreRefused(t *testing.T) {
	f := newFixture(t)
	for _, tc := range []struct {
		method, path, host string
		want               int
	}{
		{http.MethodHead, "/metrics", "localhost:3476", http.StatusOK},
		{http.MethodGet, "/healthz", "127.0.0.1", http.StatusOK},
		{http.MethodPost, "/metrics", "localhost:3476", http.StatusMethodNotAllowed},
		{http.MethodDelete, "/gpu/info", "localhost", http.StatusMethodNotAllowed},
		{http.MethodGet, "/x", "localhost", http.StatusNotFound},
		// The name of another host, whose DNS says 127.0.0.1.
		{http.MethodGet, "/", "attacker.example:3476", http.StatusForbidden},
	} {
		if r := f.do(tc.method, tc.path, tc.host); r.StatusCode != tc.want {
			t.Errorf("%s %s of %s: %s", tc.method, tc.path, tc.host, r.Status)
		}
	}
}

// A page that many people see asks NVML once.
func TestTheStatusIsKeptForASecond(t *testing.T) {
	f := newFixture(t)
	n := 0
	f.status = func() (*status.Status, error) { n++; return example(), nil }
	for range 5 {
		f.get("/gpu/info")
	}
	if n == 5 { // more than once, if this machine is slow
		t.Error("each request reads the status")
	}
	f.status = func() (*status.Status, error) { panic("a defect") }
	f.restart()
	f.want("/", "panic: a defect")
}

// A status that is never read hangs no request, and is read once for all of them.
func TestT80AStatusThatIsNeverReadHangsNoRequest(t *testing.T) {
	defer func(d time.Duration) { statusLimit = d }(statusLimit)
	statusLimit = 10 * time.Millisecond
	f := newFixture(t)
	hangs, n := make(chan struct{}), 0
	f.status = func() (*status.Status, error) { n++; <-hangs; return example(), nil }
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		for range 3 {
			f.want("/metrics", "nvidia_shim_driver_up 0\n")
			f.want("/", "the status of this host was not read within 10ms")
		}
	}()
	select {
	case <-answered:
	case <-time.After(30 * time.Second):
		t.Fatal("a request hangs")
	}
	statusLimit = time.Minute
	close(hangs)
	f.want("/gpu/info", "Driver version:          580.1\n")
	if n > 2 { // twice, if this machine is slow
		t.Errorf("it is read %d times at once", n)
	}
}

func TestT80NVMLIsNotAskedByEachRequest(t *testing.T) {
	n := 0
	ask := func(question.Questions) question.Answers { n++; return question.Answers{} }
	seldom, often := limited(ask, time.Hour), limited(ask, 0)
	if a := seldom(question.Questions{}); a.FactsError != "" || n != 1 {
		t.Errorf("%+v, asked %d times", a, n)
	}
	if a := seldom(question.Questions{}); !strings.Contains(a.FactsError, "try again") || n != 1 {
		t.Errorf("%+v, asked %d times", a, n)
	}
	for range 2 {
		often(question.Questions{})
	}
	if n != 3 {
		t.Errorf("asked %d times", n)
	}
}

// A new node's configuration comes after serve and may name another state directory.
func TestTheStateDirectoryMayChange(t *testing.T) {
	f := newFixture(t)
	f.want("/metrics", `nvidia_shim_creations_total{gpu="true"} 0`)
	other, err := state.Open(filepath.Join(t.TempDir(), "other"), false)
	if err != nil {
		t.Fatal(err)
	}
	other.AddEvent(state.Event{Kind: state.Created, GPU: true})
	f.state = other
	f.want("/metrics", `nvidia_shim_creations_total{gpu="true"} 1`)
}
