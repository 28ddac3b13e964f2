package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

func TestMain(m *testing.M) { simhost.Main(m) }

// start runs a program until the end of the test.
func start(t *testing.T, name string, argv ...string) *testenv.Command {
	t.Helper()
	c := &testenv.Command{Name: name, Argv: argv, Log: filepath.Join(t.TempDir(), "log"), Dir: "/"}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// await waits for a condition while a program runs.
func await(t *testing.T, c *testenv.Command, what string, done func() bool) {
	t.Helper()
	testenv.Await(t, what, func() bool {
		if err := c.Ended(); err != nil {
			t.Fatal(err)
		}
		return done()
	})
}

// infer is a pod with a name that is too wide for a small window.
const infer = "resnet50distributedinferenceworker0001"

// node is a host with two GPUs and a MIG-partitioned one, on which pods run and one was refused.
type node struct {
	*simhost.Host
	// address is that of serve.
	address, pod string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Host: simhost.New(t, simhost.Options{
		Driver: sim.Options{GPUs: 3, MIG: []sim.MIGDevice{{GPU: 2, GI: 1}, {GPU: 2, GI: 2}}},
		Config: "[policy]\nkubernetes = \"trust-env\"\n",
	})}
	n.pod = fmt.Sprintf("train-%d", os.Getpid())
	run := func(devices, pod string) (id string) {
		return n.Start(t, testenv.RunOptions{
			Annotations: simhost.PodAnnotations("team", pod, "main"), Env: []string{"NVIDIA_VISIBLE_DEVICES=" + devices},
		})
	}
	train := run("1", n.pod)
	run(n.Driver.MIG[0].UUID, infer)
	text, err := os.ReadFile(filepath.Join(n.BundleDir(train), "init.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil {
		err = n.Driver.Place(sim.Process{UUID: n.Driver.GPUs[1].UUID, PID: pid, Memory: 90 << 30})
	}
	if err != nil {
		t.Fatal(err)
	}
	n.Refused(t, testenv.RunOptions{
		Annotations: simhost.PodAnnotations("team", "greedy", "main"), Env: []string{"NVIDIA_VISIBLE_DEVICES=9"}, Args: []string{"true"},
	}, "unknown GPU")
	c := start(t, "serve", filepath.Join(testenv.ShimDir(), version.Ctl), "--config", n.Driver.ConfigPath,
		"serve", "--listen", "127.0.0.1:0", "--state", n.State)
	listening := regexp.MustCompile(`listening on (\S+)\n`)
	await(t, c, "serve", func() bool {
		m := listening.FindStringSubmatch(c.Tail(8 << 10))
		if m != nil {
			n.address = m[1]
		}
		return m != nil
	})
	return n
}

func get(t *testing.T, url string) (string, error) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, r.Status, body)
	}
	return string(body), err
}

// prometheus is a real one that scrapes serve every second.
type prometheus struct{ address string }

func newPrometheus(t *testing.T, target string) prometheus {
	t.Helper()
	dir := t.TempDir()
	config := simhost.WriteFile(t, filepath.Join(dir, "prometheus.yml"),
		"global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: nvidia-shim\n  static_configs:\n  - targets: ['"+target+"']\n    labels: {namespace: monitoring, pod: scraped, container: serve}\n")
	// Not installed: Debian's package starts a service.
	root, err := images.UnpackPackages(dir, []string{"prometheus"})
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := prometheus{free.Addr().String()}
	free.Close()
	c := start(t, "prometheus", root+"/usr/bin/prometheus", "--config.file="+config, "--storage.tsdb.path="+dir+"/data", "--web.listen-address="+p.address)
	await(t, c, "Prometheus", func() bool {
		_, err := get(t, "http://"+p.address+"/-/ready")
		return err == nil
	})
	return p
}

// query returns the label sets and values of a query, one a line.
func (p prometheus) query(t *testing.T, expr string) (series []string) {
	t.Helper()
	text, err := get(t, "http://"+p.address+"/api/v1/query?query="+url.QueryEscape(expr))
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  []any
			}
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &answer)
	}
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	for _, r := range answer.Data.Result {
		series = append(series, fmt.Sprintf("%v %v", r.Metric, r.Value[1]))
	}
	return series
}

const chartFiles = "../../deploy/helm/nvidia-shim/files"

// expressions are the queries of the dashboard, without its variables.
func expressions(t *testing.T) (list []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartFiles, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("panel %q asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			list = append(list, strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*").Replace(target.Expr))
		}
	}
	return list
}

func TestPrometheusScrapesServe(t *testing.T) {
	n := newNode(t)
	// NVML hangs, so that the shim cannot read the CUDA version.
	if err := errors.Join(os.Remove(filepath.Join(n.Driver.StateDir, "nvml.json")), n.Driver.Hang(true)); err != nil {
		t.Fatal(err)
	}
	n.Refused(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.8"}}, "NVML was asked")
	if err := n.Driver.Hang(false); err != nil {
		t.Fatal(err)
	}
	p := newPrometheus(t, n.address)
	holder := `nvidia_shim_device_holder{holder_pod="` + n.pod + `"}`
	// NVML's answers come back when the processes that hung have ended.
	memory := `nvidia_shim_container_memory_used_bytes{holder_pod="` + n.pod + `"}`
	for _, expr := range []string{holder, memory} {
		testenv.Await(t, "a sample of "+expr, func() bool { return len(p.query(t, expr)) > 0 })
	}
	for expr, want := range map[string]string{
		holder: "holder_namespace:team holder_pod:" + n.pod + " id:",
		`nvidia_shim_device_holder{holder_pod="` + infer + `"}`: "mig:1/0 namespace:monitoring",
		`nvidia_shim_creations_total{gpu="true"}`:               "] 2",
		`nvidia_shim_refusals_total{reason="invalid_argument"}`: "] 1",
		`nvidia_shim_create_duration_seconds_count`:             "] 2",
		`nvidia_shim_cold_views_total`:                          "] 1",
		`nvidia_shim_probe_failures_total`:                      "] 1",
		memory:                                                  "] 96636764160",
		`sum(nvidia_shim_gpu_info)`:                             "] 3",
	} {
		got := p.query(t, expr)
		if len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
	metrics, err := get(t, "http://"+n.address+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`nvidia_shim_\w+`)
	exported := names.FindAllString(metrics, -1)
	for _, expr := range expressions(t) {
		p.query(t, expr) // Prometheus understands it
		asked := names.FindAllString(expr, -1)
		if len(asked) == 0 {
			t.Errorf("%q of the dashboard has no metric of this project", expr)
		}
		for _, name := range asked {
			if !slices.Contains(exported, name) {
				t.Errorf("%s of the dashboard is no metric", name)
			}
		}
	}
}
