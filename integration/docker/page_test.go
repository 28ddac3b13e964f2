package docker

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// root is the repository.
const root = "../.."

// overlays make /etc and /usr/local this namespace's own.
const overlays = `for d in etc usr/local; do
	mkdir -p $1/$d/upper $1/$d/work && mount -t overlay -o lowerdir=/$d,upperdir=$1/$d/upper,workdir=$1/$d/work overlay /$d || exit 1
done
echo ready && exec sleep 86400`

// workstation is a host that has Docker, and nothing of this project. A mount namespace keeps what
// is installed there from the real one.
func workstation(t *testing.T) *engine {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", overlays, "sh", dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("make a mount namespace: %q, %v", line, err)
	}
	enter := []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", cmd.Process.Pid), "--"}
	e := &engine{Host: simhost.New(t, simhost.Options{Env: testenv.Options{Wrapper: enter}})}
	e.Ctr(t, "images", "tag", e.Image, e.image())
	e.Options.ShimDir = ""
	e.Restart(t)
	within := fmt.Sprintf("/proc/%d/root", cmd.Process.Pid)
	e.config = within + runtimeclass.DefaultDockerConfig
	e.flags = []string{"--config-file", runtimeclass.DefaultDockerConfig}
	for _, d := range []string{filepath.Dir(e.config), within + "/usr/local/sbin"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	e.configure(t, map[string]any{})
	simhost.Script(t, within+"/usr/local/sbin/systemctl", `[ "$*" = "reload docker" ] && kill -HUP $(cat `+e.Dir+"/docker.pid)\n")
	t.Cleanup(func() { e.daemon.Stop() })
	e.startDaemon(t)
	t.Cleanup(func() { e.removeContainers(t) })
	return e
}

var (
	console = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
	typed   = regexp.MustCompile(`(?m)^# (.*)$`)
)

// commands are those that a page tells root to type. from and to are texts around them.
func commands(t *testing.T, page, from, to string) (list []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(data), from)
	if text, _, _ = strings.Cut(text, to); !ok {
		t.Fatalf("%s has no %q", page, from)
	}
	for _, block := range console.FindAllStringSubmatch(text, -1) {
		for _, m := range typed.FindAllStringSubmatch(block[1], -1) {
			list = append(list, m[1])
		}
	}
	return list
}

// A new user of a workstation types what README.md says, and then docs/docker.md.
func TestTheCommandsOfThePages(t *testing.T) {
	// install would find two daemons.
	shared.daemon.Stop()
	t.Cleanup(func() { shared.startDaemon(t) })
	e := workstation(t)
	dir, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	list := slices.Concat(commands(t, "README.md", "**Docker** gets", "**Kubernetes**"), commands(t, "docs/docker.md", "# Docker", "\x00"))
	count := map[string]int{}
	for _, line := range append(list, "nvidia-shimctl check --target docker", "nvidia-shimctl uninstall") {
		program := strings.Fields(line)[0]
		count[program]++
		if line == "systemctl restart docker" {
			e.restart(t)
			continue
		}
		cmd := exec.Command("nsenter", append(slices.Clone(e.Options.Wrapper[1:]), "/bin/sh", "-c", "cd "+dir+" && "+strings.ReplaceAll(line, "IMAGE", e.image()))...)
		cmd.Env = append(e.environment(), "NVIDIA_SHIM_CONFIG="+e.Driver.ConfigPath)
		r, err := testenv.Output(time.Minute, cmd)
		if err != nil || r.ExitCode != 0 {
			t.Fatalf("%s: %v, exit status %d\n%s%s", line, err, r.ExitCode, r.Output, r.Error)
		}
		if program == "docker" {
			want := 1
			if strings.Contains(line, "all") {
				want = len(e.Driver.GPUs)
			}
			if strings.Count(r.Output, "GPU-") != want {
				t.Errorf("%s: %s", line, r.Output)
			}
		}
	}
	if count["docker"] < 3 || count["bin/nvidia-shimctl"] < 3 || count["systemctl"] != 1 {
		t.Errorf("commands of the pages: %q", list)
	}
	if now, err := os.ReadFile(e.config); err != nil || string(now) != string(e.plain) {
		t.Errorf("uninstall left %s, %v", now, err)
	}
}
