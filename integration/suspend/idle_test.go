package suspend

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// serve runs nvidia-shimctl serve until the end of the test, and returns it with its address.
func (h host) serve(t *testing.T) (c *testenv.Command, address string) {
	t.Helper()
	c = &testenv.Command{Name: "serve", Dir: "/", Log: filepath.Join(t.TempDir(), "log"), Argv: []string{
		filepath.Join(testenv.ShimDir(), version.Ctl), "--config", h.Driver.ConfigPath, "serve", "--listen", "127.0.0.1:0", "--state", h.State,
	}}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	listening := regexp.MustCompile(`listening on (\S+)\n`)
	testenv.Await(t, "serve", func() bool {
		m := listening.FindStringSubmatch(c.Tail(8 << 10))
		if m != nil {
			address = m[1]
		}
		return m != nil
	})
	return c, address
}

// shows waits until an answer of serve has these words: it reads the status once a second.
func shows(t *testing.T, url string, words ...string) {
	t.Helper()
	testenv.Await(t, url+" shows "+strings.Join(words, ", "), func() bool {
		r, err := http.Get("http://" + url)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(string(body), word) })
	})
}

// idleness is what status says about a container.
type idleness struct {
	Suspended *time.Time `json:"suspended_since"`
	Idle      *struct {
		After     float64 `json:"after_seconds"`
		Since     time.Time
		Reason    string
		Suspended bool
	}
}

func (c *container) idleness(t *testing.T) (found idleness) {
	t.Helper()
	var s struct {
		Containers []struct {
			ID string
			idleness
		}
	}
	if err := json.Unmarshal([]byte(c.Ctl(t, "--json", "status", "--state", c.State)), &s); err != nil {
		t.Fatal(err)
	}
	for _, of := range s.Containers {
		if of.ID == c.id {
			return of.idleness
		}
	}
	t.Fatalf("status lacks container %s", c.id)
	return found
}

// Of those that ask, only a container is suspended whose GPU is known to do nothing.
func TestIdleContainersAreSuspended(t *testing.T) {
	const limit = 3 * time.Second
	h := newHost(t, simhost.Options{Config: asked + "[policy]\nsuspend-idle-after = \"3s\"\n", Driver: sim.Options{GPUs: 6}})
	var quiet []sim.Answer
	for _, g := range h.Driver.GPUs {
		quiet = append(quiet, sim.Answer{Function: "nvmlDeviceGetUtilizationRates", UUID: g.UUID, Value: "0"})
	}
	if err := h.Driver.Answers(quiet...); err != nil {
		t.Fatal(err)
	}
	start := func(gpu string, annotations ...string) *container {
		on := h
		on.visible = gpu
		return on.start(t, 1, annotations...)
	}
	const asks = "io.containerd.nvidia.suspend-idle-after=1s"
	others := map[string]*container{
		"GPU 1 works": start("1", asks), "GPU 2 cannot be judged: NVML does not report the samples of the utilization: Unknown Error": start("2", asks),
		fmt.Sprintf("GPU 3 is used by process %d, too", os.Getpid()): start("3", asks), "": start("4"),
	}
	uuid := func(i int) string { return h.Driver.GPUs[i].UUID }
	for _, err := range []error{
		h.Driver.Utilize(sim.Busy{UUID: uuid(1), PID: others["GPU 1 works"].counters[0], Percent: 5}),
		h.Driver.Faults(sim.Fault{Function: "nvmlDeviceGetSamples", UUID: uuid(2), Code: 999}),
		h.Driver.Place(sim.Process{UUID: uuid(3), PID: os.Getpid(), Memory: mib}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	idle, patient := start("0", asks), start("5", "io.containerd.nvidia.suspend-idle-after=1h")
	begin := time.Now()
	server, address := h.serve(t)
	for cycle := range 2 {
		testenv.Await(t, "the idle container is suspended", func() bool { return idle.idleness(t).Suspended != nil })
		if since := idle.idleness(t).Suspended; since.Sub(begin.Truncate(time.Second)) < limit { // in whole seconds
			t.Errorf("cycle %d: suspended at %s, after it ran at %s", cycle, since, begin)
		}
		idle.wantStatus(t, "PAUSED")
		idle.wantMemory(t, 0)
		testenv.Await(t, "status knows why", func() bool { return idle.idleness(t).Idle.Suspended })
		for reason, c := range others {
			c.wantStatus(t, "RUNNING")
			c.counts(t, 1)
			// Observations that were late, on a busy host, are unknown for a moment.
			testenv.Await(t, "status says "+reason, func() bool {
				got := c.idleness(t)
				if got.Suspended != nil || (got.Idle == nil) != (reason == "") {
					t.Fatalf("status says %+v, want %q", got, reason)
				}
				return got.Idle == nil || got.Idle.Reason == reason
			})
		}
		text := h.Ctl(t, "status", "--state", h.State)
		simhost.Want(t, text, "SUSPENDED", "BECAUSE", "OR NOT, BECAUSE", "GPU 1 works")
		shows(t, address+"/", "because it was idle", "after 3s: GPU 1 works", "after 1h0m0s: idle since ")
		shows(t, address+"/metrics", fmt.Sprintf("nvidia_shim_idle_suspensions_total %d\n", cycle+1), "nvidia_shim_container_idle_since_timestamp_seconds{")
		if got := patient.idleness(t); got.Suspended != nil || got.Idle.After != 3600 {
			t.Errorf("status says %+v of a container that has to be idle for longer", got.Idle)
		}
		if cycle == 0 {
			begin = time.Now()
			idle.resume(t)
			idle.counts(t, 1)
		}
	}
	said := server.Tail(64 << 10)
	if strings.Count(said, "nvidia-shimctl: container "+idle.id+" was idle for ") < 2 || strings.Count(said, " was idle for ") != strings.Count(said, idle.id+" was idle for ") {
		t.Errorf("serve says\n%s", said)
	}
}

// A container that cannot be suspended runs on, and is tried again later, with one message.
func TestAnIdleContainerThatCannotBeSuspended(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked + "[policy]\nsuspend-idle-after = \"1s\"\n"})
	if err := h.Driver.Answers(sim.Answer{Function: "nvmlDeviceGetUtilizationRates", UUID: h.Driver.GPUs[0].UUID, Value: "0"}); err != nil {
		t.Fatal(err)
	}
	c := h.start(t, 1, "io.containerd.nvidia.suspend-idle-after=1s")
	steer(t, h, sim.Checkpoint{Function: "Lock", Result: 801})
	server, _ := h.serve(t)
	const failed = " is idle and cannot be suspended; the next attempt is when it has been idle for 2s: nvidia: cannot suspend the GPUs of container "
	testenv.Await(t, "an attempt", func() bool { return strings.Contains(server.Tail(64<<10), c.id+failed+c.id) })
	c.wantStatus(t, "RUNNING")
	c.counts(t, 1)
	steer(t, h)
	testenv.Await(t, "it is suspended", func() bool { return c.idleness(t).Suspended != nil })
	if said := server.Tail(64 << 10); strings.Count(said, "cannot be suspended") != 1 {
		t.Errorf("serve says\n%s", said)
	}
	c.resume(t)
	c.counts(t, 1)
}
