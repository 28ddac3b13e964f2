//go:build gpu

package gpu

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
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

func TestServeAgreesWithNvidiaSmi(t *testing.T) {
	gpus := hostGPUs(t)
	c := &testenv.Command{Name: "serve", Dir: "/", Log: filepath.Join(t.TempDir(), "log"),
		Argv: []string{filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), "serve", "--listen", "127.0.0.1:0"}}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	var address []string
	testenv.Await(t, 20*time.Second, "serve", func() bool {
		if err := c.Ended(); err != nil {
			t.Fatal(err)
		}
		address = regexp.MustCompile(`listening on (\S+)\n`).FindStringSubmatch(c.Tail(4096))
		return address != nil
	})
	get := func(path string) string {
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
		if busy, ok := value(metrics, "nvidia_shim_gpu_utilization_ratio"+labels); ok && (busy < 0 || busy > 1) {
			t.Errorf("GPU %s is busy %v of the time", g.Index, busy)
		}
		if text := get("/gpu/info"); !strings.Contains(text, g.UUID) || !strings.Contains(text, "/dev/nvidia"+g.Minor+"\n") {
			t.Errorf("/gpu/info lacks GPU %s:\n%s", g.UUID, text)
		}
	}
	if page := get("/"); !strings.Contains(page, "GPU 0 <span>"+rows[0]["name"]) || strings.Contains(page, `role="alert"`) {
		t.Errorf("the page:\n%s", page)
	}
}
