package nvml

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

func TestGPUMemoryFitsIntoTheCgroupsMemoryLimit(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		name, cgroup string
		files        map[string]string
		err          string
	}{
		{"without a limit", "0::/pod/c", map[string]string{"pod/c/memory.max": "max", "pod/memory.max": "max"}, ""},
		{"enough", "0::/pod/c", map[string]string{"pod/c/memory.max": "209715200", "pod/c/memory.current": "41943040"}, ""},
		{"too little", "0::/pod/c", map[string]string{"pod/c/memory.max": "209715200", "pod/c/memory.current": "104857600"},
			"the memory limit of cgroup /pod/c leaves 100 of 200 MiB, and 132 MiB are needed for GPU memory: raise the limit"},
		{"a cache that goes", "0::/pod/c", map[string]string{"pod/c/memory.max": "209715200", "pod/c/memory.current": "104857600",
			"pod/c/memory.stat": "anon 4096\ninactive_file 41943040\nactive_file 4096"}, ""},
		{"the pod's limit", "0::/pod/c", map[string]string{"pod/c/memory.max": "max", "pod/memory.max": "104857600", "pod/memory.current": "4096"},
			"the memory limit of cgroup /pod leaves 99 of 100 MiB, and 132 MiB are needed for GPU memory: raise the limit"},
		{"cgroup v1", "4:memory:/c\n0::/", map[string]string{"memory/c/memory.limit_in_bytes": "209715200", "memory/c/memory.usage_in_bytes": "104857600",
			"memory/c/memory.stat": "total_inactive_file 0"},
			"the memory limit of cgroup /memory/c leaves 100 of 200 MiB, and 132 MiB are needed for GPU memory: raise the limit"},
		{"cgroup v1 without a limit", "4:memory:/c\n0::/", map[string]string{"memory/c/memory.limit_in_bytes": "9223372036854771712", "memory/c/memory.usage_in_bytes": "104857600"}, ""},
		{"a small host", "0::/pod/c", map[string]string{"../proc/meminfo": "MemTotal:  204800 kB\nMemAvailable:  102400 kB\nSwapFree: 1024 kB"},
			"this host has 100 MiB of memory available, and 132 MiB are needed for GPU memory"},
		{"a small host with swap", "0::/pod/c", map[string]string{"../proc/meminfo": "MemAvailable:  102400 kB\nSwapFree: 102400 kB"}, ""},
		{"a process that has ended", "", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			files := map[string]string{"proc/7/cgroup": test.cgroup}
			for name, text := range test.files {
				files["cgroup/"+name] = text
			}
			for name, text := range files {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			memory := probe.Memory{7: {"GPU-a": 60 * mib, "GPU-b": 40 * mib}}
			err := checkHostMemory(procfs.FS(filepath.Join(dir, "proc")), filepath.Join(dir, "cgroup"), memory)
			if (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("got %v, want %q", err, test.err)
			}
		})
	}
}
