package nvml

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

func TestGPUMemoryFitsIntoTheCgroupsMemoryLimit(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		name, cgroup string
		files        map[string]string
		others       map[string]uint64
		err          string
	}{
		{"without a limit", "0::/pod/c", map[string]string{"pod/c/memory.max": "max", "pod/memory.max": "max"}, nil, ""},
		{"enough", "0::/pod/c", map[string]string{"pod/c/memory.max": "209715200", "pod/c/memory.current": "41943040"}, nil, ""},
		{"too little", "0::/pod/c", map[string]string{"pod/c/memory.max": "209715200", "pod/c/memory.current": "104857600"}, nil,
			"the memory limit of cgroup /pod/c leaves 100 of 200 MiB, and 132 MiB are needed for GPU memory: raise the limit"},
		{"a cache that goes", "0::/pod/c", map[string]string{"pod/c/memory.max": "209715200", "pod/c/memory.current": "104857600",
			"pod/c/memory.stat": "anon 4096\ninactive_file 41943040\nactive_file 4096"}, nil, ""},
		{"the pod's limit", "0::/pod/c", map[string]string{"pod/c/memory.max": "max", "pod/memory.max": "104857600", "pod/memory.current": "4096"}, nil,
			"the memory limit of cgroup /pod leaves 99 of 100 MiB, and 132 MiB are needed for GPU memory: raise the limit"},
		{"cgroup v1", "4:memory:/c\n0::/", map[string]string{"memory/c/memory.limit_in_bytes": "209715200", "memory/c/memory.usage_in_bytes": "104857600",
			"memory/c/memory.stat": "total_inactive_file 0"}, nil,
			"the memory limit of cgroup /memory/c leaves 100 of 200 MiB, and 132 MiB are needed for GPU memory: raise the limit"},
		{"cgroup v1 without a limit", "4:memory:/c\n0::/", map[string]string{"memory/c/memory.limit_in_bytes": "9223372036854771712", "memory/c/memory.usage_in_bytes": "104857600"}, nil, ""},
		{"a small host", "0::/pod/c", map[string]string{"../proc/meminfo": "MemTotal:  204800 kB\nMemAvailable:  102400 kB\nSwapFree: 1024 kB"}, nil,
			"this host has 100 MiB of memory available, and 132 MiB are needed for GPU memory"},
		{"what others move", "0::/pod/c", map[string]string{"../proc/meminfo": "MemAvailable:  204800 kB"}, map[string]uint64{"": 69 * mib},
			"this host has 200 MiB of memory available, and 132 MiB are needed for GPU memory, beside 69 MiB that other containers move now"},
		{"what others move in the pod", "0::/pod/c", map[string]string{"pod/memory.max": "209715200", "pod/memory.current": "4096"}, map[string]uint64{"/pod": 69 * mib},
			"the memory limit of cgroup /pod leaves 199 of 200 MiB, and 132 MiB are needed for GPU memory, beside 69 MiB that other containers move now: raise the limit"},
		{"an unknown host", "0::/pod/c", map[string]string{"../proc/meminfo": "MemTotal: 204800 kB"}, nil, "meminfo does not say how much memory is available"},
		{"a small host with swap", "0::/pod/c", map[string]string{"../proc/meminfo": "MemAvailable:  102400 kB\nSwapFree: 102400 kB"}, nil, ""},
		{"a process that has ended", "", nil, nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			files := map[string]string{"proc/7/cgroup": test.cgroup, "proc/meminfo": "MemAvailable: 1048576 kB"}
			for name, text := range test.files {
				files[filepath.Join("cgroup", name)] = text
			}
			for name, text := range files {
				path := filepath.Clean(filepath.Join(dir, name))
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			memory := probe.Memory{7: {"GPU-a": 60 * mib, "GPU-b": 40 * mib}}
			proc, root := procfs.FS(filepath.Join(dir, "proc")), filepath.Join(dir, "cgroup")
			others := map[string]uint64{}
			for key, bytes := range test.others {
				if key != "" {
					key = root + key
				}
				others[key] = bytes
			}
			err := checkHostMemory(proc, root, hostNeeds(proc, root, memory), others)
			if (err == nil) != (test.err == "") || err != nil && !strings.HasSuffix(err.Error(), test.err) {
				t.Errorf("got %v, want %q", err, test.err)
			}
		})
	}
}
