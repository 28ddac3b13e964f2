package docker

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// visible are flags for a container of the registered runtime.
func visible(devices string, more ...string) []string {
	return append([]string{"--runtime", "nvidia", "--env", "NVIDIA_VISIBLE_DEVICES=" + devices}, more...)
}

// check compares what a container that printed out sees with what belongs to these GPUs.
func check(t *testing.T, out string, gpus ...int) {
	t.Helper()
	got, want := simhost.Parse(out), shared.Expect(gpus)
	if len(gpus) == 0 {
		want = shared.ExpectNothing()
	}
	simhost.Compare(t, got, want)
}

// probe runs a container that is removed and returns what it prints about itself.
func (e *engine) probe(t testing.TB, flags []string, image string) string {
	t.Helper()
	args := append(e.run("--rm"), flags...)
	return e.docker(t, append(append(args, image), e.ProbeArgs()...)...)
}

// background starts a container that waits; it is removed with the test.
func (e *engine) background(t *testing.T, flags ...string) string {
	t.Helper()
	args := append(append(e.run("--detach"), flags...), e.image(), "/bin/sleep", "600")
	id := strings.TrimSpace(e.docker(t, args...))
	t.Cleanup(func() { e.docker(t, "rm", "--force", "--volumes", id) })
	return id
}

// unchanged fails the test if it leaves anything on the host, except what is ignored.
func unchanged(t *testing.T, ignored ...string) {
	t.Helper()
	before := shared.Snapshot(t)
	t.Cleanup(func() { before.AssertUnchanged(t, ignored...) })
}

func TestEachWayToAskGivesExactlyItsGPUs(t *testing.T) {
	unchanged(t)
	uuid := shared.Driver.GPUs[3].UUID
	for _, tc := range []struct {
		name  string
		flags []string
		want  []int
	}{
		{"an index", visible("0"), []int{0}},
		{"two indices, by the name of the shim", []string{"--runtime", "io.containerd.nvidia.v2", "--env", "NVIDIA_VISIBLE_DEVICES=1,2"}, []int{1, 2}},
		{"a UUID", visible(uuid), []int{3}},
		{"all", visible("all"), []int{0, 1, 2, 3}},
		{"nothing", []string{"--runtime", "nvidia"}, nil},
		{"void", visible("void"), nil},
		{"a device-list mount", []string{"--runtime", "nvidia", "--volume", "/dev/null:/var/run/nvidia-container-devices/0"}, []int{0}},
		{"runc, by the variable", []string{"--env", "NVIDIA_VISIBLE_DEVICES=0"}, nil},
		{"runc, by a device-list mount", []string{"--volume", "/dev/null:/var/run/nvidia-container-devices/0"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) { check(t, shared.probe(t, tc.flags, shared.image()), tc.want...) })
	}
}

// What else a user asks of a container does not change its GPUs.
func TestGPUsWithOtherOptionsOfDockerRun(t *testing.T) {
	unchanged(t, "/parent") // runc leaves a parent cgroup
	want := shared.Expect([]int{1})
	for name, flags := range map[string][]string{
		"read-only, as a user":   {"--read-only", "--user", "1000:1000"},
		"without capabilities":   {"--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65534"},
		"namespaces of the host": {"--pid", "host", "--ipc", "host"},
		"file systems in memory": {"--tmpfs", "/run", "--tmpfs", "/tmp", "--shm-size", "1g"},
		"limits":                 {"--memory", "64m", "--pids-limit", "50"},
		"another parent cgroup":  {"--cgroup-parent", "/" + shared.ID + "/parent"},
	} {
		t.Run(name, func(t *testing.T) {
			got := simhost.Parse(shared.probe(t, visible("1", flags...), shared.image()))
			got.Mknod = want.Mknod // not every one of these containers may make nodes
			simhost.Compare(t, got, want)
		})
	}
	t.Run("privileged", func(t *testing.T) {
		if got := simhost.Parse(shared.probe(t, visible("1", "--privileged"), shared.image())); !slices.Contains(got.SMI, shared.Driver.GPUs[1].UUID) {
			t.Errorf("nvidia-smi: %q", got.SMIText)
		}
	})
	t.Run("a terminal", func(t *testing.T) {
		args := append(append(shared.run("-it", "--rm"), visible("1")...), shared.image(), "sh", "-c", "'test -t 0 && nvidia-smi -L'")
		cmd := exec.Command("script", "-qec", shared.program("docker")+" "+strings.Join(args, " "), "/dev/null")
		cmd.Env = shared.environment()
		if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), "GPU-") != 1 {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// Docker monitors a GPU container like any other.
func TestWhatDockerTellsOfAGPUContainer(t *testing.T) {
	unchanged(t)
	inspect := func(id, field string) string {
		return strings.TrimSpace(shared.docker(t, "inspect", "--format", "{{.State."+field+"}}", id))
	}
	t.Run("its health, processes and files", func(t *testing.T) {
		id := shared.background(t, visible("1", "--health-cmd", "nvidia-smi -L", "--health-interval", "100ms")...)
		testenv.Await(t, "the container is healthy", func() bool { return inspect(id, "Health.Status") == "healthy" })
		simhost.Want(t, shared.docker(t, "inspect", "--format", "{{json .State.Health.Log}}", id), shared.Driver.GPUs[1].UUID)
		simhost.Want(t, shared.docker(t, "top", id), "/bin/sleep 600")
		if got := shared.docker(t, "stats", "--no-stream", "--format", "{{.MemUsage}} {{.PIDs}}", id); strings.HasPrefix(got, "0B") || strings.HasSuffix(got, " 0\n") {
			t.Errorf("stats: %s", got)
		}
		file := simhost.WriteFile(t, filepath.Join(t.TempDir(), "file"), "copied")
		shared.docker(t, "cp", file, id+":/copy")
		shared.docker(t, "cp", id+":/copy", file+"2")
		if text, err := os.ReadFile(file + "2"); err != nil || string(text) != "copied" {
			t.Errorf("cp: %q, %v", text, err)
		}
		simhost.Want(t, shared.docker(t, "diff", id), "A /copy\n", "/usr/local/nvidia\n")
	})
	t.Run("the end by the OOM killer", func(t *testing.T) {
		args := append(shared.run("--detach", "--memory", "32m", "--memory-swap", "32m"), visible("1")...)
		id := strings.TrimSpace(shared.docker(t, append(args, shared.image(), "dd", "if=/dev/zero", "of=/dev/null", "bs=256M", "count=1")...))
		t.Cleanup(func() { shared.docker(t, "rm", "--force", id) })
		code := strings.TrimSpace(shared.docker(t, "wait", id))
		if code != "137" || inspect(id, "OOMKilled") != "true" {
			t.Errorf("exit status %s, OOMKilled %s", code, inspect(id, "OOMKilled"))
		}
	})
}

func TestAContainerStartsTwice(t *testing.T) {
	unchanged(t)
	args := append([]string{"create", "--network", "none", "--pull", "never"}, visible("3")...)
	id := strings.TrimSpace(shared.docker(t, append(append(args, shared.image()), shared.ProbeArgs()...)...))
	t.Cleanup(func() { shared.docker(t, "rm", "--force", id) })
	for range 2 {
		check(t, shared.docker(t, "start", "--attach", id), 3)
	}
}

func TestRefusalsReachTheUserInOneLine(t *testing.T) {
	unchanged(t)
	for name, tc := range map[string]struct {
		flags []string
		words []string
	}{
		"an unknown GPU":                 {visible("9"), []string{`NVIDIA_VISIBLE_DEVICES="9"`, `unknown GPU "9"`}},
		"a volume where the driver goes": {visible("0", "--volume", shared.Dir+"/path:/usr/local", "--volume", "/opt"), []string{"/usr/local/nvidia", "mount it elsewhere"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := shared.try(t, nil, append(append(shared.run("--rm"), tc.flags...), shared.image(), "/bin/true")...)
			if r.ExitCode == 0 {
				t.Fatalf("the container started: %s", r.Output)
			}
			simhost.Want(t, r.Error, tc.words...)
			if message, _, _ := strings.Cut(r.Error, "\n\n"); strings.Contains(message, "\n") {
				t.Errorf("more than one line: %q", r.Error)
			}
		})
	}
}

// A running container keeps exactly its GPU, whatever happens to it and to the daemons above it.
func TestAContainerKeepsItsGPU(t *testing.T) {
	unchanged(t)
	id := shared.background(t, visible("2")...)
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"exec", func() {}},
		{"update", func() {
			shared.docker(t, "update", "--memory", "128m", "--memory-swap", "128m", "--cpus", "1", "--pids-limit", "100", id)
		}},
		{"pause and unpause", func() { shared.docker(t, "pause", id); shared.docker(t, "unpause", id) }},
		{"programs replaced", func() { shared.replacePrograms(t) }},
		{"restart", func() { shared.docker(t, "restart", "--time", "0", id) }},
		{"stop and start", func() { shared.docker(t, "stop", "--time", "0", id); shared.docker(t, "start", id) }},
		{"kill and start", func() {
			shared.docker(t, "kill", id)
			shared.docker(t, "wait", id)
			shared.docker(t, "start", id)
		}},
		{"dockerd again", func() { shared.restart(t) }},
		{"containerd again", func() {
			shared.Restart(t)
			testenv.Await(t, "dockerd finds containerd", func() bool { return shared.try(t, nil, "exec", id, "true").ExitCode == 0 })
		}},
	} {
		t.Run(step.name, func(t *testing.T) {
			step.do()
			check(t, shared.docker(t, append([]string{"exec", id}, shared.ProbeArgs()...)...), 2)
		})
	}
	t.Run("a privileged exec opens no other GPU", func(t *testing.T) {
		args := append([]string{"exec", "--privileged", id}, shared.ProbeArgs()...)
		check(t, shared.docker(t, args...), 2)
	})
}

// replacePrograms installs other programs, until the test ends.
func (e *engine) replacePrograms(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range runtimeclass.Programs {
		text, err := os.ReadFile(filepath.Join(testenv.ShimDir(), name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), append(text, '\n'), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	installed := filepath.Join(e.Dir, runtimeclass.DefaultBinDir, version.Shim)
	before, _ := os.Stat(installed)
	e.shimctl(t, "install", "--from", dir)
	t.Cleanup(func() { e.install(t) })
	if after, err := os.Stat(installed); err != nil || after.Size() != before.Size()+1 {
		t.Fatalf("the program was not replaced: %v", err)
	}
}

// A container that asks for it gives its GPU memory back while it is paused.
func TestPauseSuspendsTheGPU(t *testing.T) {
	unchanged(t)
	program := filepath.Join(t.TempDir(), "count")
	testenv.CompileCount(t, program)
	args := shared.run(append(visible("0"), "--detach", "--annotation", "io.containerd.nvidia.on-pause=suspend-gpu", "--volume", program+":/usr/bin/count:ro")...)
	id := strings.TrimSpace(shared.docker(t, append(args, shared.image(), "/bin/sh", "-c", "exec count 2 >/dev/shm/passed")...))
	t.Cleanup(func() { shared.docker(t, "rm", "--force", id) })
	pid := strings.TrimSpace(shared.docker(t, "inspect", "--format", "{{.State.Pid}}", id))
	init, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	want := func(state string, bytes int64) {
		t.Helper()
		if got := strings.TrimSpace(shared.docker(t, "inspect", "--format", "{{.State.Status}}", id)); got != state || simhost.GPUMemory(t, init) != bytes {
			t.Errorf("the container is %s with %d bytes of GPU memory, want %s with %d", got, simhost.GPUMemory(t, init), state, bytes)
		}
	}
	counts := func() { t.Helper(); testenv.AwaitCount(t, "/proc/"+pid+"/root/dev/shm/passed") }
	counts()
	shared.docker(t, "pause", id)
	want("paused", 0)
	shared.docker(t, "unpause", id)
	want("running", 2<<20)
	counts()
	if err := shared.Driver.Checkpoints(sim.Checkpoint{Function: "Lock", Result: 801}); err != nil {
		t.Fatal(err)
	}
	refused := shared.try(t, nil, "pause", id)
	if err := shared.Driver.Checkpoints(); err != nil || refused.ExitCode == 0 {
		t.Fatalf("paused: %v", err)
	}
	simhost.Want(t, refused.Error, "nvidia: cannot suspend the GPUs of container "+id+": process "+pid+": cuCheckpointProcessLock")
	want("running", 2<<20)
	counts()
}

func TestARestartPolicyGivesTheGPUEachTime(t *testing.T) {
	unchanged(t)
	args := append(shared.run("--detach", "--restart", "on-failure:2"), visible("3")...)
	id := strings.TrimSpace(shared.docker(t, append(args, shared.image(), "/bin/sh", "-c", "nvidia-smi -L; exit 1")...))
	t.Cleanup(func() { shared.docker(t, "rm", "--force", id) })
	testenv.Await(t, "the container runs three times", func() bool {
		return shared.docker(t, "inspect", "--format", "{{.RestartCount}} {{.State.Status}}", id) == "2 exited\n"
	})
	if got := strings.Count(shared.docker(t, "logs", id), shared.Driver.GPUs[3].UUID); got != 3 {
		t.Errorf("the GPU was there %d times, want 3", got)
	}
}

// The image of a GPU container runs without a GPU and with another one.
func TestAnImageCommittedFromAGPUContainer(t *testing.T) {
	unchanged(t)
	const image = "committed:latest"
	shared.docker(t, "commit", shared.background(t, visible("0")...), image)
	t.Cleanup(func() { shared.docker(t, "rmi", image) })
	check(t, shared.probe(t, visible("1"), image), 1)
	check(t, shared.probe(t, visible("void"), image))
	check(t, shared.probe(t, nil, image))
}
