package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// idle is how long a container runs before its shim's memory is read: containerd's shim library
// returns unused memory to the kernel every 30 seconds.
const idle = 35 * time.Second

// shims is how many shims of each runtime are looked at.
const shims = 5

// memory reads what the shims of running containers occupy, all at the same time.
func (b *bench) memory(ctx context.Context, variants ...Variant) (map[string][]Memory, error) {
	running := map[string][]*task{}
	var all []*task
	for range shims {
		for _, v := range variants {
			t, err := b.started(ctx, v)
			if err != nil {
				return nil, err
			}
			running[v.Name] = append(running[v.Name], t)
			all = append(all, t)
		}
	}
	time.Sleep(idle)
	out := map[string][]Memory{}
	for name, tasks := range running {
		for _, t := range tasks {
			pids := t.env.ShimPIDs(t.id)
			if len(pids) != 1 {
				return nil, fmt.Errorf("container %s has the shims %v, want one", t.id, pids)
			}
			m, err := readMemory(pids[0])
			if err != nil {
				return nil, err
			}
			out[name] = append(out[name], m)
		}
	}
	for _, t := range all {
		if err := t.remove(ctx); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func readMemory(pid int) (Memory, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	field := func(name string) int {
		for line := range strings.Lines(string(data)) {
			if rest, ok := strings.CutPrefix(line, name+":"); ok {
				n, _ := strconv.Atoi(strings.Fields(rest)[0])
				return n
			}
		}
		return 0
	}
	m := Memory{RSS: field("VmRSS"), Anon: field("RssAnon")}
	if m.RSS == 0 {
		return m, fmt.Errorf("process %d has no VmRSS: it ended", pid)
	}
	return m, nil
}
