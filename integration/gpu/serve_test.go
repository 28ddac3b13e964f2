//go:build gpu

package gpu

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// value is that of a line of the metrics.
func value(metrics, series string) (float64, bool) {
	_, rest, ok := strings.Cut("\n"+metrics, "\n"+series+" ")
	if !ok {
		return 0, false
	}
	line, _, _ := strings.Cut(rest, "\n")
	return number(line)
}

// startServe starts serve, and returns what asks it.
func startServe(t *testing.T, env *testenv.Env) (get func(path string) string) {
	t.Helper()
	c := &testenv.Command{Name: "serve", Dir: "/", Log: filepath.Join(t.TempDir(), "log"),
		Argv: []string{filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), "--config", env.Options.ShimConfig, "serve", "--listen", "127.0.0.1:0"}}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	var address []string
	testenv.Await(t, "serve", func() bool {
		if err := c.Ended(); err != nil {
			t.Fatal(err)
		}
		address = regexp.MustCompile(`listening on (\S+)\n`).FindStringSubmatch(c.Tail(4096))
		return address != nil
	})
	return func(path string) string {
		r, err := http.Get("http://" + address[1] + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v: %s", path, r.Status, err, text)
		}
		return string(text)
	}
}

// A container on each GPU holds memory and keeps the GPU busy.
func TestServeAgreesWithNvidiaSmi(t *testing.T) {
	gpus := hostGPUs(t)
	env := newEnv(t, "")
	ids := map[string]string{} // by UUID
	for _, g := range gpus {
		ids[g.UUID] = startHold(t, env, g.Index, 512, "BUSY=1")
	}
	get := startServe(t, env)
	testenv.Await(t, "the health of the GPUs", func() bool {
		watched, _ := value(get("/metrics"), "nvidia_shim_health_watched")
		return watched == 1
	})
	rows := smi(t, "gpu", "name", "driver_version", "memory.total", "memory.used")
	start := time.Now()
	metrics := get("/metrics")
	t.Logf("after %v:\n%s", time.Since(start), metrics)
	if up, _ := value(metrics, "nvidia_shim_nvml_up"); up != 1 || !strings.Contains(metrics, `driver_version="`+rows[0]["driver_version"]+`"`) {
		t.Errorf("NVML: %v, not driver %s", up, rows[0]["driver_version"])
	}
	for i, g := range gpus {
		labels := fmt.Sprintf(`{gpu="%s",uuid="%s"}`, g.Index, g.UUID)
		info := fmt.Sprintf(`nvidia_shim_gpu_info{gpu="%s",model="%s",pci="%s",uuid="%s"}`, g.Index, rows[i]["name"], g.Bus, g.UUID)
		if _, ok := value(metrics, info); !ok {
			t.Errorf("no %s", info)
		}
		for field, name := range map[string]string{"memory.total": "total", "memory.used": "used"} {
			want, ok := number(rows[i][field])
			got, has := value(metrics, "nvidia_shim_gpu_memory_"+name+"_bytes"+labels)
			if ok != has || math.Abs(got/(1<<20)-want) > 64 {
				t.Errorf("GPU %s: %s %v bytes, nvidia-smi %v MiB", g.Index, name, got, want)
			}
		}
		if _, ok := value(metrics, "nvidia_shim_gpu_health_state"+labels); !ok {
			t.Errorf("the health of GPU %s is not known", g.Index)
		}
		checkHolder(t, env, get, g, ids[g.UUID])
		if text := get("/gpu/info"); !strings.Contains(text, g.UUID) || !strings.Contains(text, "/dev/nvidia"+g.Minor+"\n") {
			t.Errorf("/gpu/info lacks GPU %s:\n%s", g.UUID, text)
		}
	}
	if page := get("/"); !strings.Contains(page, "GPU 0 <span>"+rows[0]["name"]) || strings.Contains(page, `role="alert"`) {
		t.Errorf("the page:\n%s", page)
	}
	for _, id := range ids {
		env.Remove(t, id)
		testenv.Await(t, "serve forgets container "+id, func() bool { return !strings.Contains(get("/metrics"), `,id="`+id+`",`) })
	}
}

// checkHolder compares with nvidia-smi what serve has on the one container of a GPU: that it holds
// the GPU and no other, its memory, and how busy the GPU is.
func checkHolder(t *testing.T, env *testenv.Env, get func(string) string, g gpu, id string) {
	t.Helper()
	metrics := get("/metrics")
	holder := fmt.Sprintf(`nvidia_shim_device_holder{gpu="%s",holder_container="",holder_namespace="%s",holder_pod="",id="%s",mig="",uuid="%s"}`, g.Index, env.ID, id, g.UUID)
	all := regexp.MustCompile(`(?m)^nvidia_shim_device_holder\{.*,id="`+id+`",mig="`).FindAllString(metrics, -1)
	if _, ok := value(metrics, holder); !ok || len(all) != 1 {
		t.Errorf("not %s alone:\n%s", holder, metrics)
	}
	want := 0.0 // MiB
	pids := env.PIDs(t, id)
	for _, app := range smi(t, "compute-apps", "gpu_uuid", "pid", "used_memory") {
		pid, err := strconv.Atoi(app["pid"])
		if mib, known := number(app["used_memory"]); err == nil && known && app["gpu_uuid"] == g.UUID && slices.Contains(pids, pid) {
			want += mib
		}
	}
	container := fmt.Sprintf(`holder_container="",holder_namespace="%s",holder_pod="",id="%s"`, env.ID, id)
	from := status.FromProcesses
	if strings.Contains(metrics, `from="`+status.FromCgroup+`"`) { // driver 615
		from = status.FromCgroup
	}
	for _, memory := range []string{
		"nvidia_shim_container_memory_used_bytes{" + container + "}",
		fmt.Sprintf(`nvidia_shim_container_device_memory_used_bytes{from="%s",gpu="%s",%s,mig="",uuid="%s"}`, from, g.Index, container, g.UUID),
	} {
		if got, ok := value(metrics, memory); want == 0 {
			t.Logf("nvidia-smi ON THIS HOST DOES NOT LIST the process of container %s, so its memory is not compared", id)
		} else if !ok || math.Abs(got/(1<<20)-want) > 64 {
			t.Errorf("%s: %v bytes, nvidia-smi has %v MiB", memory, got, want)
		}
	}
	// The kernels follow each other without end, but a sample may be from before the first one.
	busy := fmt.Sprintf(`nvidia_shim_gpu_utilization_ratio{gpu="%s",uuid="%s"}`, g.Index, g.UUID)
	var figures string
	if !testenv.Until(func() bool {
		ratio, ok := value(get("/metrics"), busy)
		percent, known := number(ask(t, g, "--query-gpu=utilization.gpu"))
		figures = fmt.Sprintf("serve: %v %v, nvidia-smi: %v %v", ratio, ok, percent, known)
		return ok == known && (!ok || ratio > 0.5 && math.Abs(100*ratio-percent) <= 10)
	}) {
		t.Errorf("GPU %s: %s", g.Index, figures)
	}
	t.Logf("GPU %s: %v MiB; %s", g.Index, want, figures)
}
