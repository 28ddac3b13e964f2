package serve

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// soakTime names a duration, such as 1h: the load goes on that long, and is ten times as heavy.
const soakTime = "NVIDIA_SHIM_SOAK_SERVE"

// load is what clients do to serve.
type load struct {
	slow, kept int // clients that send a byte at a time, and connections that send nothing
	time       time.Duration
}

func loadOfTest(t *testing.T) load {
	t.Helper()
	text := os.Getenv(soakTime)
	if text == "" {
		return load{100, 1500, 5 * time.Second}
	}
	d, err := time.ParseDuration(text)
	testtree.Check(t, err)
	return load{1000, 15000, d}
}

// Many slow clients and connections cost serve a bounded number of descriptors and no memory that
// stays, and it answers again when they are gone.
func TestServeUnderManyConnections(t *testing.T) {
	l := loadOfTest(t)
	var was unix.Rlimit
	testtree.Check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	testtree.Check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 20000, Max: max(20000, was.Max)}))
	t.Cleanup(func() { testtree.Check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) })
	d := sim.New(t, sim.Options{GPUs: 2})
	c := start(t, "serve", filepath.Join(testenv.ShimDir(), version.Ctl), "--config", d.ConfigPath, "serve", "--listen", "127.0.0.1:0", "--state", t.TempDir())
	listening, address := regexp.MustCompile(`listening on (\S+)\n`), ""
	await(t, c, "serve", func() bool {
		m := listening.FindStringSubmatch(c.Tail(8 << 10))
		if m != nil {
			address = m[1]
		}
		return m != nil
	})
	for range 20 {
		_, err := get(t, "http://"+address+"/metrics")
		testtree.Check(t, err)
	}
	before := descriptors(t, c.PID())
	memory := kilobytes(t, c.PID(), "VmRSS")

	end := make(chan bool)
	var clients sync.WaitGroup
	for range l.slow {
		clients.Go(func() { sendSlowly(address, end) })
	}
	for range 250 {
		clients.Go(func() { hold(address, l.kept/250, end) })
	}
	most, answers := 0, 0
	for start := time.Now(); time.Since(start) < l.time; time.Sleep(100 * time.Millisecond) {
		testtree.Check(t, c.Ended())
		most = max(most, descriptors(t, c.PID()))
		if r, err := (&http.Client{Timeout: time.Second}).Get("http://" + address + "/metrics"); err == nil {
			answers++
			r.Body.Close()
		}
	}
	close(end)
	clients.Wait()
	testenv.Await(t, "an answer after the load", func() bool {
		_, err := get(t, "http://"+address+"/metrics")
		return err == nil
	})
	testenv.Await(t, "the end of all connections", func() bool { return descriptors(t, c.PID()) <= before+4 })
	peak, now := kilobytes(t, c.PID(), "VmHWM"), kilobytes(t, c.PID(), "VmRSS")
	t.Logf("%d slow clients and %d connections for %s: %d answers, %d descriptors, memory %d KiB before, %d at most, %d after", l.slow, l.kept, l.time, answers, most, memory, peak, now)
	if most > before+96 { // 64 connections, and the pipes of the probe
		t.Errorf("%d descriptors, %d before", most, before)
	}
	if peak > 96<<10 || now > memory+24<<10 {
		t.Errorf("memory: %d KiB before, %d at most, %d after", memory, peak, now)
	}
}

// sendSlowly sends requests byte by byte, each as long as the server lets it.
func sendSlowly(address string, end <-chan bool) {
	for {
		c, err := net.DialTimeout("tcp", address, time.Second)
		for i := 0; err == nil; i++ {
			_, err = c.Write([]byte{"GET /metrics HTTP/1.1\r\nX: "[min(i, 25)]})
			if !pause(end, 200*time.Millisecond) {
				err = errors.New("the end")
			}
		}
		if c != nil {
			c.Close()
		}
		if !pause(end, 10*time.Millisecond) {
			return
		}
	}
}

// hold opens connections and holds each until the end.
func hold(address string, n int, end <-chan bool) {
	for range n {
		if c, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			defer c.Close()
		}
		select {
		case <-end:
			return
		default:
		}
	}
	<-end
}

// pause waits, and reports whether the end has not come.
func pause(end <-chan bool, d time.Duration) bool {
	select {
	case <-end:
		return false
	case <-time.After(d):
		return true
	}
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(procfs.Host.Path(pid, "fd"))
	testtree.Check(t, err)
	return len(list)
}

// kilobytes returns a value of /proc/PID/status.
func kilobytes(t *testing.T, pid int, name string) int {
	t.Helper()
	text, err := os.ReadFile(procfs.Host.Path(pid, "status"))
	testtree.Check(t, err)
	m := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in %s", name, text)
	}
	n, err := strconv.Atoi(string(m[1]))
	testtree.Check(t, err)
	return n
}
