package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// moreMemory is what a suspended process needs on the host in addition to its GPU memory: 10 MiB
// with driver 580.159.04.
const moreMemory = 32 << 20

// hostNeeds returns the memory, in bytes, that GPU memory of these processes takes in each of their
// cgroups, by directory, and on the host, by "". root is where cgroups are mounted.
func hostNeeds(proc procfs.FS, root string, memory probe.Memory) map[string]uint64 {
	needs := map[string]uint64{}
	for pid, devices := range memory {
		need := uint64(moreMemory)
		for _, bytes := range devices {
			need += bytes
		}
		needs[""] += need
		for dir := memoryCgroup(proc, root, pid); len(dir) > len(root); dir = filepath.Dir(dir) {
			needs[dir] += need
		}
	}
	return needs
}

// checkHostMemory returns an error if these needs, beside what others move meanwhile, do not fit
// into the host's memory and the memory limits of the cgroups: the kernel would kill a process.
func checkHostMemory(proc procfs.FS, root string, needs, others map[string]uint64) error {
	free, swap, err := HostMemory(proc)
	if err != nil {
		return err
	}
	if free+swap < needs[""]+others[""] {
		return fmt.Errorf("this host has %d MiB of memory available, and %d MiB are needed for GPU memory%s", free>>20, needs[""]>>20, promised(others[""]))
	}
	for dir, need := range needs {
		if dir == "" {
			continue
		}
		limit, used, cache := "memory.max", "memory.current", "" // of cgroup v2
		if _, err := os.Lstat(filepath.Join(dir, limit)); err != nil {
			limit, used, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
		}
		most, limited := readNumbers(filepath.Join(dir, limit))[""]
		stat := readNumbers(filepath.Join(dir, "memory.stat"))
		taken := readNumbers(filepath.Join(dir, used))[""]
		taken -= min(taken, stat[cache+"inactive_file"]+stat[cache+"active_file"]) // the kernel reclaims these
		if free := most - min(most, taken); limited && free-min(free, others[dir]) < need {
			return fmt.Errorf("the memory limit of cgroup %s leaves %d of %d MiB, and %d MiB are needed for GPU memory%s: raise the limit",
				strings.TrimPrefix(dir, root), free>>20, most>>20, need>>20, promised(others[dir]))
		}
	}
	return nil
}

// HostMemory returns the memory of the host, in bytes, that is available without swap, and the free
// swap.
func HostMemory(proc procfs.FS) (available, swap uint64, err error) {
	path := filepath.Join(string(proc), "meminfo")
	host := readNumbers(path) // in KiB
	available, ok := host["MemAvailable:"]
	if !ok {
		return 0, 0, fmt.Errorf("%s does not say how much memory is available", path)
	}
	return available << 10, host["SwapFree:"] << 10, nil
}

// memoryCgroup returns the directory of a process' cgroup that counts its memory.
func memoryCgroup(proc procfs.FS, root string, pid int) string {
	paths := proc.Cgroups(pid)
	if path, ok := paths["memory"]; ok {
		return filepath.Join(root, "memory", path)
	}
	return filepath.Join(root, paths[""])
}

// readNumbers reads a file of lines "NAME NUMBER", or with a single number, whose name is "".
func readNumbers(path string) map[string]uint64 {
	numbers := map[string]uint64{}
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 1 {
			fields = []string{"", fields[0]}
		}
		if len(fields) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil { // else it is "max"
			numbers[fields[0]] = n
		}
	}
	return numbers
}
