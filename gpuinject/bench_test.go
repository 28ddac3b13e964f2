package gpuinject

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
)

// typicalSpec has the size of what containerd writes for a container of a pod: about
// 60 KB, most of it the seccomp profile.
func typicalSpec(env ...string) *specs.Spec {
	spec := newSpec(append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME=/root"}, env...)...)
	var calls []specs.LinuxSyscall
	for i := range 40 {
		call := specs.LinuxSyscall{Action: "SCMP_ACT_ALLOW", Args: []specs.LinuxSeccompArg{{Index: 1, Value: uint64(i), Op: specs.OpEqualTo}}}
		for n := range 50 {
			call.Names = append(call.Names, fmt.Sprintf("name_of_a_system_call_%d", 50*i+n))
		}
		calls = append(calls, call)
	}
	spec.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: "SCMP_ACT_ERRNO", Syscalls: calls}
	spec.Linux.CgroupsPath = "kubepods-pod1.slice:cri-containerd:c1"
	for i := range 12 {
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: fmt.Sprintf("/volume/%d", i), Type: "bind", Source: fmt.Sprintf("/var/lib/kubelet/%d", i), Options: []string{"rbind", "rw"}})
	}
	return spec
}

func BenchmarkExamineNoGPU(b *testing.B) {
	dir := newBundle(b, typicalSpec())
	b.ReportAllocs()
	for b.Loop() {
		if job, _, err := Examine(dir, nil); job != nil || err != nil {
			b.Fatal(job, err)
		}
	}
}

func BenchmarkExamineOneGPU(b *testing.B) {
	cfg := hostConfig(b)
	dir := newBundle(b, typicalSpec("NVIDIA_VISIBLE_DEVICES=0"))
	b.ReportAllocs()
	for b.Loop() {
		if job, _, err := Examine(dir, loading(cfg)); job == nil || err != nil {
			b.Fatal(job, err)
		}
	}
}

// gpuBundle is a container that asks for one GPU, on a host that has seen it before.
func gpuBundle(b *testing.B, caps string) (*config.Config, string) {
	cfg := hostConfig(b)
	dir := newBundle(b, typicalSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES="+caps))
	mustInject(b, cfg, dir).Close()
	// Let what was just written settle (driver.Files.Settled).
	time.Sleep(50 * time.Millisecond)
	mustInject(b, cfg, dir).Close()
	return cfg, dir
}

func BenchmarkResolveWarm(b *testing.B) {
	for _, caps := range []string{"compute,utility", "all"} {
		b.Run(caps, func(b *testing.B) {
			cfg, dir := gpuBundle(b, caps)
			b.ReportAllocs()
			for b.Loop() {
				job, _, err := Examine(dir, loading(cfg))
				if err == nil {
					err = job.Resolve()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRequirements is what a requirement as images of CUDA have it adds to Resolve,
// on a host where NVML was asked before: they all have one.
func BenchmarkRequirements(b *testing.B) {
	for _, tc := range []struct{ name, variable string }{{"without", "A=B"}, {"with", "NVIDIA_REQUIRE_CUDA=" + cudaImage}} {
		b.Run(tc.name, func(b *testing.B) {
			cfg, _ := gpuBundle(b, "compute,utility")
			dir := newBundle(b, typicalSpec("NVIDIA_VISIBLE_DEVICES=0", tc.variable))
			b.ReportAllocs()
			for b.Loop() {
				job, _, err := Examine(dir, loading(cfg))
				if err == nil {
					job.AskNVML = func() (device.Facts, error) { return someFacts(), nil }
					err = job.Resolve()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkInject takes a fresh container through all that precedes runc.
func BenchmarkInject(b *testing.B) {
	// The cost of a file system is not what is measured.
	if err := os.MkdirAll("/dev/shm", 0o1777); err != nil {
		b.Fatal(err)
	}
	b.Setenv("TMPDIR", "/dev/shm")
	for _, caps := range []string{"compute,utility", "all"} {
		b.Run(caps, func(b *testing.B) {
			cfg, _ := gpuBundle(b, caps)
			dir := newBundle(b, typicalSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES="+caps))
			name := filepath.Join(dir, bundle.ConfigName)
			original := readFile(b, dir, bundle.ConfigName)
			b.ReportAllocs()
			var used time.Duration
			for b.Loop() {
				b.StopTimer()
				for _, written := range []string{"ld.so.cache", "ld.so.conf", "ld.so.conf.d"} {
					_ = os.RemoveAll(filepath.Join(dir, "rootfs/etc", written))
				}
				writeFile(b, name, string(original), 0o600)
				before := processorTime()
				b.StartTimer()
				job, _, err := Examine(dir, loading(cfg))
				if err == nil {
					err = job.Resolve()
				}
				var inj *Injection
				if err == nil {
					inj, err = job.Inject(filepath.Join(dir, "rootfs"))
				}
				if err != nil {
					b.Fatal(err)
				}
				inj.Close()
				used += processorTime() - before
			}
			b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// processorTime is what this process has used, which tells more than the clock where
// other processes want the processors too.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// newLargeHost is a host with eight GPUs, four of them divided into sixteen MIG devices.
func newLargeHost(t testing.TB) (*sim.Driver, *config.Config) {
	t.Helper()
	var mig []sim.MIGDevice
	for i := range 16 {
		mig = append(mig, sim.MIGDevice{GPU: 4 + i/4, GI: 3 + i%4})
	}
	d := simtest.New(t, sim.Options{GPUs: 8, MIG: mig})
	cfg, err := config.Load(d.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if state, err := view.OpenState(cfg.Host.StateDir); err == nil {
			_ = state.Remove()
		}
	})
	return d, cfg
}

// BenchmarkEverything takes a container that gets all of a large host through what
// precedes runc (resolve) and what goes on beside it (finish).
func BenchmarkEverything(b *testing.B) {
	_, cfg := newLargeHost(b)
	dir := newBundle(b, typicalSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"))
	original := readFile(b, dir, bundle.ConfigName)
	prepare := func() *Job {
		writeFile(b, filepath.Join(dir, bundle.ConfigName), string(original), 0o600)
		ahead := LookAhead(dir, loading(cfg))
		if ahead.listed != nil {
			<-ahead.listed
		}
		job, _, err := ahead.Examine(dir, loading(cfg))
		if err != nil {
			b.Fatal(err)
		}
		return job
	}
	resolved := func() *Job {
		job := prepare()
		if err := job.Resolve(); err != nil {
			b.Fatal(err)
		}
		return job
	}
	inj, err := resolved().Inject(filepath.Join(dir, "rootfs"))
	if err == nil {
		err = inj.Wait()
	}
	if err != nil {
		b.Fatal(err)
	}
	inj.Close()
	time.Sleep(50 * time.Millisecond) // driver.Files.Settled
	resolved()
	b.Run("resolve", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			job := prepare()
			b.StartTimer()
			if err := job.Resolve(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("finish", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			inj, err := resolved().Inject(filepath.Join(dir, "rootfs"))
			if err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			if err := inj.Wait(); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			inj.Close()
			b.StartTimer()
		}
	})
}
