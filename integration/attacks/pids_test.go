package attacks

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// inPIDNamespace is set in the process that runs T17 in a PID namespace of its own.
const inPIDNamespace = "NVIDIA_SHIM_TEST_PID_NAMESPACE"

// reuse is the runc of T17. After `runc create` it kills the container's process, waits until the
// shim has reaped it, and then until the test has given its PID to another process. Arguments: the
// real runc, and the file that says so.
const reuse = `
%[1]s "$@" || exit
case " $* " in *" create "*) ;; *) exit 0 ;; esac
while [ "$1" != --pid-file ]; do shift; done
pid=$(cat "$2")
kill -9 $pid
while [ -d /proc/$pid ]; do :; done
echo $pid >%[2]s.new
mv %[2]s.new %[2]s
while [ -e %[2]s ]; do :; done
exit 0
`

// takeOver waits for the PID of a process that has ended, and starts a process with this PID in
// another mount namespace.
func takeOver(t *testing.T, file string) (was int, process *exec.Cmd) {
	t.Helper()
	testenv.Await(t, "the container's process has ended", func() bool {
		data, err := os.ReadFile(file)
		if err == nil {
			_, err = fmt.Sscan(string(data), &was)
		}
		return err == nil
	})
	ready := file + ".ready"
	_ = os.Remove(ready)
	if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(fmt.Sprint(was-1)), 0); err != nil {
		t.Error(err)
	}
	process = exec.Command("unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", "mount -t proc proc /proc; echo ready >"+ready+"; exec sleep 60")
	if err := process.Start(); err != nil {
		t.Error(err)
	}
	testenv.Await(t, "the other process runs", func() bool { _, err := os.Stat(ready); return err == nil })
	if err := os.Remove(file); err != nil {
		t.Error(err)
	}
	return was, process
}

func TestT17AProcessIDIsUsedAgainBeforeTheMaskIsAttached(t *testing.T) {
	if os.Getenv(inPIDNamespace) == "" {
		// The shell is the namespace's first process and reaps orphans.
		cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "/bin/sh", "-c", `"$0" "$@"; exit $?`,
			os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inPIDNamespace+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	h := newHost(t, simhost.Options{})
	result := filepath.Join(h.Dir, "reused")
	script := simhost.Script(t, filepath.Join(h.Dir, "runc-wrapper"), fmt.Sprintf(reuse, filepath.Join(h.Options.ToolsDir, "runc"), result))
	config := simhost.WriteFile(t, filepath.Join(h.Dir, "runtime.toml"), "BinaryName = \""+script+"\"\n")
	reused := 0
	for range 20 {
		if reused == 5 {
			break
		}
		h.unharmed(t, func() {
			var r testenv.Result
			done := make(chan bool)
			go func() {
				defer close(done)
				r, _ = h.TryRun(t, testenv.RunOptions{Env: []string{one}, Args: []string{"/bin/true"}, Extra: []string{"--runtime-config-path", config}})
			}()
			was, other := takeOver(t, result)
			<-done
			if r.ExitCode == 0 {
				t.Error("a container without a process started")
			}
			table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", other.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			if was == other.Process.Pid {
				reused++
				t.Logf("process %d: %s", was, strings.TrimSpace(r.Error))
			}
			if strings.Contains(string(table), " "+simhost.Mask+" ") {
				t.Errorf("process %d of a container, and then another process: the mask was attached to it", was)
			}
			_ = other.Process.Kill()
			_ = other.Wait()
			h.Gone(t, r.ID)
		})
	}
	if reused == 0 {
		t.Error("no process id was used again")
	}
}

// parallel is how many containers T18 creates at once.
const parallel = 50

// The containers stay until all were created: containerd's reaper stalls if many that end at once
// meet Start calls (containerd issue 13849).
func TestT18FiftyCreationsAtOnceDoNotMixUpDevices(t *testing.T) {
	h := newHost(t, simhost.Options{Driver: sim.Options{GPUs: 8}, Env: simhost.RaceShim(t)})
	h.maxPeak *= parallel
	for name, annotations := range map[string][]string{"T18 in one pod": {inPod}, "T18 each with a shim of its own": nil} {
		t.Run(name, func(t *testing.T) {
			marks := t.TempDir()
			h.unharmed(t, func() {
				var group sync.WaitGroup
				ids := make([]string, parallel)
				for i := range ids {
					ids[i] = h.NewID()
					group.Go(func() {
						args := h.ProbeArgs()
						args[2] = "exec >/marks/.new" + ids[i] + "\n" + args[2] + "\nmv /marks/.new" + ids[i] + " /marks/" + ids[i] + "\nexec sleep 1000000"
						r, err := h.TryRun(t, testenv.RunOptions{
							ID: ids[i], Annotations: annotations, Env: []string{fmt.Sprint("NVIDIA_VISIBLE_DEVICES=", i%8)}, Args: args,
							Mounts: []string{"type=bind,src=" + marks + ",dst=/marks,options=rbind:rw"}, Detach: true, Timeout: 10 * time.Minute,
						})
						if err != nil || r.ExitCode != 0 {
							t.Errorf("container %d: %v, exit status %d, %s", i, err, r.ExitCode, r.Error)
						}
					})
				}
				group.Wait()
				for i, id := range ids {
					var seen []byte
					if !t.Failed() && !testenv.Until(func() (ok bool) {
						data, err := os.ReadFile(filepath.Join(marks, id))
						seen = data
						return err == nil
					}) {
						t.Errorf("container %d says nothing", i)
					}
					simhost.Compare(t, simhost.Parse(string(seen)), h.Expect([]int{i % 8}))
					h.Gone(t, id)
				}
			})
		})
	}
}
