package attacks

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
)

// worst is an input that costs a shim much.
type worst struct {
	name   string
	image  attack
	change func(spec map[string]any)
}

// withEnv adds variables to a specification.
func withEnv(list ...string) func(spec map[string]any) {
	return func(spec map[string]any) {
		process := spec["process"].(map[string]any)
		for _, v := range list {
			process["env"] = append(process["env"].([]any), v)
		}
	}
}

// fullCache is a loader's cache as large as the shim reads one, whose entries share a long name.
func fullCache() []images.File {
	const size, entry, text = 4 << 20, 24, 4096
	count := (size - 48 - text) / entry
	return []images.File{{Path: "etc/ld.so.cache", Mode: 0o644, Data: cacheOf(count, text)}}
}

// cacheOf is a loader's cache with count entries and one name of length text.
func cacheOf(count, text int) []byte {
	names := 48 + count*24
	data := make([]byte, names+text)
	copy(data, "glibc-ld.so.cache1.1")
	binary.LittleEndian.PutUint32(data[20:], uint32(count))
	binary.LittleEndian.PutUint32(data[24:], uint32(text))
	data[28] = 2
	copy(data[names:], "/lib/"+strings.Repeat("x", text-12)+".so.1")
	for i := range count {
		at := 48 + i*24
		binary.LittleEndian.PutUint32(data[at:], 0x303)
		binary.LittleEndian.PutUint32(data[at+4:], uint32(names+5))
		binary.LittleEndian.PutUint32(data[at+8:], uint32(names))
	}
	return data
}

// worstInputs are those of docs/benchmarks.md: each is as large as a bound allows, or just refused.
func worstInputs(volume string) []worst {
	repeated := func(key string, element map[string]any, name string) func(spec map[string]any) {
		return func(spec map[string]any) {
			withEnv(one)(spec)
			linux := spec["linux"].(map[string]any)
			var list []any
			for i := range 4000 {
				e := map[string]any{name: fmt.Sprint("/v/", i)}
				for k, v := range element {
					e[k] = v
				}
				list = append(list, e)
			}
			switch key {
			case "devices":
				linux[key] = list
			case "mounts":
				spec[key] = append(spec[key].([]any), list...)
			default:
				spec["hooks"] = map[string]any{key: list}
			}
		}
	}
	bind := map[string]any{"source": volume, "type": "bind", "options": []string{"rbind"}}
	return []worst{
		{"variable of 4 MiB", attack{}, withEnv("NVIDIA_VISIBLE_DEVICES=" + strings.Repeat("0,", 2<<20))},
		{"variable of 127 KiB", attack{}, withEnv("NVIDIA_VISIBLE_DEVICES=" + strings.Repeat("0,", 127<<9))},
		{"100,000 variables", attack{}, withEnv(append(slices.Repeat([]string{"NVIDIA_X=1"}, 100_000), one)...)},
		{"variables of 7 MiB", attack{}, withEnv(append(slices.Repeat([]string{"A=" + strings.Repeat("x", 100<<10)}, 70), one)...)},
		{"100,000 annotations", attack{}, func(spec map[string]any) {
			withEnv(one)(spec)
			annotations := map[string]any{}
			for i := range 100_000 {
				annotations[fmt.Sprint("cdi.k8s.io/", i)] = ""
			}
			spec["annotations"] = annotations
		}},
		{"CDI names of 127 KiB", attack{}, func(spec map[string]any) {
			spec["annotations"] = map[string]any{"cdi.k8s.io/x": strings.Repeat("nvidia.com/gpu=0,", 127<<10/17)}
		}},
		{"4,000 mounts", attack{}, repeated("mounts", bind, "destination")},
		{"4,000 devices", attack{}, repeated("devices", map[string]any{"type": "c", "major": 1, "minor": 3, "fileMode": 0o666}, "path")},
		{"4,000 hooks", attack{}, repeated("poststart", nil, "path")},
		{"loader's cache of 4 MiB", attack{remove: []string{"etc/ld.so.cache"}, files: fullCache()}, withEnv(one, everything)},
		{"39 links through 100 directories", attack{remove: []string{"etc"}, files: chain("etc", 100, 39)}, withEnv(one, everything)},
	}
}

// The shim needs little memory and processor time for the worst inputs, beside the stock shim, which
// passes them on to runc. The log has a table for docs/benchmarks.md.
func TestT71TheWorstInputsBesideTheStockShim(t *testing.T) {
	h := newHost(t, simhost.Options{})
	volume := filepath.Join(h.Dir, "volume")
	if err := os.Mkdir(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	table := "\n| input | memory, stock | ours | processor time, stock | ours | |\n|---|---|---|---|---|---|\n"
	for _, w := range worstInputs(volume) {
		root := h.image(t, w.image)
		stock, ours := h.cost(t, testenv.StockRuntime, w, root), h.cost(t, testenv.DefaultRuntime, w, root)
		outcome := "starts"
		if ours.err != nil {
			outcome = "refused"
			t.Logf("%s: %.300v", w.name, ours.err)
		}
		table += fmt.Sprintf("| %s | %.1f MiB | %.1f MiB | %d ms | %d ms | %s |\n", w.name,
			float64(stock.peak)/1024, float64(ours.peak)/1024, stock.time.Milliseconds(), ours.time.Milliseconds(), outcome)
		if ours.peak > stock.peak+maxPeak {
			t.Errorf("%s: the shim needs %d KiB, the stock shim %d", w.name, ours.peak, stock.peak)
		}
		if ours.time > maxTime {
			t.Errorf("%s: the shim uses %v", w.name, ours.time)
		}
	}
	t.Log(table)
}

// cost is what creating a container costs a shim, without the programs that it runs.
type cost struct {
	peak int // memory in KiB
	time time.Duration
	err  error
}

// cost creates a container of this input in a shim of its own, beside a first one.
func (h *host) cost(t *testing.T, runtime string, w worst, root string) (c cost) {
	t.Helper()
	first := h.NewID()
	h.Host.Run(t, testenv.RunOptions{ID: first, Runtime: runtime, Env: []string{one}, Args: []string{"/bin/sleep", "1000000"}, Detach: true})
	defer h.Gone(t, first)
	shims := h.ShimPIDs(first)
	if len(shims) != 1 {
		t.Fatalf("shims: %v", shims)
	}
	alone := *h
	alone.shim, alone.pod = shims[0], first
	b, spec := alone.newBundle(t, testenv.RunOptions{RootfsDir: root})
	w.change(spec)
	b.write(t, encode(t, spec))
	b.task, b.ctx = api.Task(t, h.Env, first)
	defer b.remove(t)
	alone.resetPeak(t)
	before := alone.processorTime(t)
	_, c.err = b.task.Create(b.ctx, &taskapi.CreateTaskRequest{ID: b.id, Bundle: b.dir})
	c.time, c.peak = alone.processorTime(t)-before, memory(t, alone.shim, "VmHWM")
	return c
}
