package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/runargs"
)

// started is a buffer that reports the first line.
type started struct {
	bytes.Buffer
	line chan string
}

func (s *started) Write(p []byte) (int, error) {
	s.line <- string(p)
	return s.Buffer.Write(p)
}

// serveOn runs serve until stop, which returns its status.
func serveOn(t *testing.T, args ...string) (line string, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	out, errs, status := &started{line: make(chan string, 1)}, &bytes.Buffer{}, make(chan int, 1)
	go func() { status <- run(ctx, append([]string{"nvidia-shimctl"}, args...), out, errs) }()
	select {
	case line = <-out.line:
	case code := <-status:
		t.Fatalf("status %d, %s", code, errs)
	}
	return line, func() int { cancel(); return <-status }
}

// fetch gets a path from a server.
func fetch(t *testing.T, network, address, path string) string {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	r, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get("http://localhost" + path)
	testtree.Check(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v\n%s", path, r.Status, err, body)
	}
	return string(body)
}

func TestServe(t *testing.T) {
	d := simulate(t)
	state := record(t, d)
	socket := filepath.Join(t.TempDir(), "s")
	// A process that is killed leaves its socket behind.
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	testtree.Check(t, err)
	left.SetUnlinkOnClose(false)
	testtree.Check(t, left.Close())

	line, stop := serveOn(t, "--config", d.ConfigPath, "serve", "--listen", "unix:"+socket, "--state", state)
	if line != "listening on unix:"+socket+"\n" {
		t.Errorf("printed %q", line)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	metrics := fetch(t, "unix", socket, "/metrics")
	contains(t, metrics, `nvidia_shim_device_holder{gpu="1",holder_container="",holder_namespace="default",holder_pod="",id="of-gpu-1",mig="",uuid="`+d.GPUs[1].UUID+`"} 1`,
		"nvidia_shim_nvml_up 1", `nvidia_shim_gpu_memory_used_bytes{gpu="2",uuid="`+d.GPUs[2].UUID+`"}`)
	text := fetch(t, "unix", socket, "/docker/cli?dev=1")
	want := fine(t, "--config", d.ConfigPath, "--json", "run-args", "--for", "docker", "--devices", "1")
	var r runargs.Args
	decode(t, want, &r)
	if text != strings.Join(r.Args, " ") {
		t.Errorf("/docker/cli: %s", text)
	}
	contains(t, fetch(t, "unix", socket, "/docker/cli/json"), `"Devices":["`+d.DevRoot)
	if code, _, errs := ctl(t, "--config", d.ConfigPath, "serve", "--listen", "unix:"+d.ConfigPath); code != 1 || !strings.Contains(errs, "is no socket") {
		t.Errorf("a file: exit status %d: %s", code, errs)
	}
	if _, err := os.Stat(d.ConfigPath); err != nil {
		t.Error(err)
	}
	if code, _, errs := ctl(t, "--config", d.ConfigPath, "serve", "--listen", "unix:"+socket); code != 1 || !strings.Contains(errs, "another process listens") {
		t.Errorf("twice: status %d, %s", code, errs)
	}
	if code := stop(); code != 0 {
		t.Errorf("status %d", code)
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is left")
	}
}

func TestServeWithADriverThatHangsOrGoes(t *testing.T) {
	defer func(d time.Duration) { nvmlTimeout = d }(nvmlTimeout)
	nvmlTimeout = 300 * time.Millisecond
	d := simulate(t)
	testtree.Check(t, d.Hang(true))
	noHealth(t, d) // its question would hang first
	line, stop := serveOn(t, "--config", d.ConfigPath, "serve", "--listen", "127.0.0.1:0", "--state", record(t, d))
	defer stop()
	address := strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	if got := fetch(t, "tcp", address, "/healthz"); got != "ok\n" {
		t.Errorf("%q", got)
	}
	contains(t, fetch(t, "tcp", address, "/metrics"), "nvidia_shim_nvml_up 0", `id="of-gpu-1"`)
	contains(t, fetch(t, "tcp", address, "/"), "NVML has not answered within 300ms", "Held by <b>of-gpu-1</b>")
	testtree.Check(t, os.RemoveAll(filepath.Join(d.ProcRoot, "driver")))
	testenv.Await(t, "the driver to be missed", func() bool { // the status is cached for a second
		return strings.Contains(fetch(t, "tcp", address, "/metrics"), "nvidia_shim_driver_up 0")
	})
}

func TestT80UnknownMIGDevicesAreNotAskedForByEachRequest(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 2, MIG: []sim.MIGDevice{{GPU: 0, GI: 1}}})
	line, stop := serveOn(t, "--config", d.ConfigPath, "serve", "--listen", "127.0.0.1:0", "--state", record(t, d))
	defer stop()
	address := strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	testenv.Await(t, "a refusal to ask NVML again", func() bool {
		r, err := http.Get("http://" + address + "/docker/cli?dev=MIG-5a1d4e3c-7e5f-4b6e-9d5c-3f2a1b0c9d8e")
		testtree.Check(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		return err == nil && r.StatusCode == http.StatusBadRequest && strings.Contains(string(text), "NVML was asked less than 1s ago")
	})
}

// noHealth turns off what watches the health of GPUs.
func noHealth(t *testing.T, d *sim.Driver) {
	t.Helper()
	f, err := os.OpenFile(d.ConfigPath, os.O_WRONLY|os.O_APPEND, 0)
	testtree.Check(t, err)
	defer f.Close()
	_, err = f.WriteString("[policy]\nhealth = \"off\"\n")
	testtree.Check(t, err)
}

// serve keeps the file up to date from which the shim knows a sick GPU.
func TestServeWatchesTheHealthOfGPUs(t *testing.T) {
	d := simulate(t)
	line, stop := serveOn(t, "--config", d.ConfigPath, "serve", "--listen", "127.0.0.1:0", "--state", record(t, d))
	address := strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	sick := func() (health.GPU, bool) {
		f, err := health.Read(d.StateDir, d.Version, time.Now())
		testtree.Check(t, err)
		return f.GPU(d.GPUs[1].BusID)
	}
	testenv.Await(t, "the file", func() bool { _, err := os.Stat(filepath.Join(d.StateDir, health.Name)); return err == nil })
	if g, is := sick(); is {
		t.Errorf("%+v", g)
	}
	testtree.Check(t, d.Xid(d.GPUs[1].UUID, 79))
	testenv.Await(t, "the Xid", func() bool { _, is := sick(); return is })
	g, _ := sick()
	contains(t, g.String(), "unhealthy since "+time.Now().Format(time.DateOnly), "Xid 79 (GPU has fallen off the bus)", "drain the node and reboot it")
	out := fine(t, "--config", d.ConfigPath, "plan", "--env", "NVIDIA_VISIBLE_DEVICES=1")
	contains(t, out, "Xid 79")
	out = fine(t, "--config", d.ConfigPath, "status")
	contains(t, out, "GPU 1: unhealthy since ", "Xid 79")
	_, out, _ = ctl(t, "--config", d.ConfigPath, "check")
	contains(t, out, "the health of 3 GPUs is watched", "is unhealthy since", "drain the node and reboot it")
	labels := `{gpu="1",uuid="` + d.GPUs[1].UUID + `"}`
	testenv.Await(t, "the metrics", func() bool { // the status is cached for a second
		return strings.Contains(fetch(t, "tcp", address, "/metrics"), "nvidia_shim_gpu_health_state"+labels+" 2\n")
	})
	contains(t, fetch(t, "tcp", address, "/metrics"), "nvidia_shim_gpu_xid"+labels+" 79\n", "nvidia_shim_health_watched 1\n",
		`nvidia_shim_gpu_unhealthy_since_timestamp_seconds{fix="drain the node and reboot it",gpu="1",reason="Xid 79 (GPU has fallen off the bus)`)
	contains(t, fetch(t, "tcp", address, "/"), "<strong>Health:</strong> unhealthy since ")
	if code := stop(); code != 0 {
		t.Errorf("status %d", code)
	}
}
