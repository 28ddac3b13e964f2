// Command demo shows the shim at work: `make demo`. It starts a private containerd
// in a temporary directory, imports an image that it assembles from this host's own
// programs, and runs ctr commands, which it prints with their real output. On a
// host with an NVIDIA driver that driver is used, elsewhere a simulated one. At the
// end nothing is left.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

const (
	imageRef = "demo.local/gpu:latest"
	runtime  = "io.containerd.nvidia.v2"
)

func main() {
	bin := flag.String("bin", "bin", "directory with the shim; its tools/ has containerd, ctr and runc")
	gpus := flag.Int("gpus", 4, "number of GPUs where they are simulated")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, *gpus); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// demo is a running demonstration.
type demo struct {
	dir, tools, config string
	real               bool
	failed             error
}

func run(ctx context.Context, bin string, gpus int) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("containers are made with mounts, cgroups and device nodes: run it as root")
	}
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	// Short: a shim's socket path has a limit.
	dir, err := os.MkdirTemp("/tmp", "nvdemo")
	if err != nil {
		return err
	}
	d := &demo{dir: dir, tools: filepath.Join(bin, "tools"), config: filepath.Join(dir, "shim.toml")}
	_, serr := os.Stat("/proc/driver/nvidia/version")
	d.real = serr == nil
	defer func() { err = errors.Join(err, d.clean()) }()

	if d.real {
		say("This host has an NVIDIA driver: it is used.")
		err = os.WriteFile(d.config, []byte("[host]\nstate-dir = \""+filepath.Join(dir, "state")+"\"\n"), 0o644)
	} else {
		say("This host has no NVIDIA driver: %d GPUs are simulated (integration/simdriver).", gpus)
		var driver *sim.Driver
		if driver, err = sim.Create(ctx, sim.Options{Dir: filepath.Join(dir, "sim"), GPUs: gpus}); err == nil {
			d.config = driver.ConfigPath
			defer func() { err = errors.Join(err, driver.Remove()) }()
		}
	}
	if err != nil {
		return err
	}
	image := filepath.Join(dir, "image.tar")
	content, err := images.FromHostPrograms(imageRef, []string{"sh", "ls", "cat", "grep", "mknod", "rm", "echo", "true"})
	if err != nil {
		return err
	}
	if err := content.Write(image); err != nil {
		return err
	}
	stop, err := d.containerd(ctx, bin)
	if err != nil {
		return err
	}
	defer stop()
	say("A private containerd runs in %s. NVIDIA_SHIM_CONFIG=%s", dir, d.config)
	if _, err := d.ctr(ctx, "images", "import", image).CombinedOutput(); err != nil {
		return fmt.Errorf("import the image: %w", err)
	}
	d.show(ctx)
	return d.failed
}

// show runs the commands that a reader should see.
func (d *demo) show(ctx context.Context) {
	say("\nOne GPU, and only that one:")
	d.container(ctx, "0", "nvidia-smi", "-L")
	say("\nThe dynamic loader of the image knows the driver; no ldconfig ran:")
	d.container(ctx, "0", "sh", "-c", "ldconfig -p | grep libcuda")
	open := "permitted means that the device cgroup let it pass"
	if !d.real {
		open += "; there is no real driver behind a simulated node"
	}
	say("\nWhich device nodes may be opened, also after mknod (%s):", open)
	d.container(ctx, "0", "sh", "-c", `for m in 0 1 2 3; do rm -f /tmp/n; mknod /tmp/n c 195 $m; e=$( (exec 3<>/tmp/n) 2>&1 ); `+
		`case "$e" in *"not permitted"*) echo "195:$m refused";; *) echo "195:$m permitted";; esac; done; ls /dev | grep nvidia`)
	say("\nEvery GPU, by another way to say it:")
	d.container(ctx, "all", "nvidia-smi", "-L")
	say("\nA container that asks for none has none:")
	d.container(ctx, "", "sh", "-c", "ls /dev | grep nvidia || echo no NVIDIA device")
	say("\nA request that cannot be met says so:")
	d.refused(ctx, "9")
}

// container runs one container and prints the command and what it printed. visible
// empty means without the variable.
func (d *demo) container(ctx context.Context, visible string, args ...string) {
	if out, err := d.run(ctx, visible, args...); err != nil {
		d.failed = errors.Join(d.failed, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out))
	}
}

// refused runs one container that must not start.
func (d *demo) refused(ctx context.Context, visible string) {
	if _, err := d.run(ctx, visible, "true"); err == nil {
		d.failed = errors.Join(d.failed, fmt.Errorf("NVIDIA_VISIBLE_DEVICES=%s was not refused", visible))
	}
}

func (d *demo) run(ctx context.Context, visible string, args ...string) (string, error) {
	full := []string{"run", "--rm", "--runtime", runtime}
	if visible != "" {
		full = append(full, "--env", "NVIDIA_VISIBLE_DEVICES="+visible)
	}
	full = append(append(full, imageRef, "demo"), args...)
	shown := make([]string, len(full))
	for i, a := range full {
		if shown[i] = a; strings.ContainsAny(a, " |;$") {
			shown[i] = "'" + a + "'"
		}
	}
	fmt.Printf("$ ctr %s\n", strings.Join(shown, " "))
	out, err := d.ctr(ctx, full...).CombinedOutput()
	var kept []string
	for line := range strings.Lines(string(out)) {
		// About the host, not about us.
		if !strings.Contains(line, "DEPRECATION") {
			kept = append(kept, line)
		}
	}
	text := strings.Join(kept, "")
	fmt.Print(text)
	return text, err
}

func (d *demo) ctr(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(d.tools, "ctr"), append([]string{"--address", d.socket()}, args...)...)
}

func (d *demo) socket() string { return filepath.Join(d.dir, "c.sock") }

// containerd starts a containerd of its own and waits until it answers.
func (d *demo) containerd(ctx context.Context, bin string) (stop func(), err error) {
	config := filepath.Join(d.dir, "containerd.toml")
	text := fmt.Sprintf("version = 3\nroot = %q\nstate = %q\n"+
		"disabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime']\n"+
		"[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n",
		filepath.Join(d.dir, "root"), filepath.Join(d.dir, "run"), d.socket(), filepath.Join(d.dir, "t.sock"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	logFile, err := os.Create(filepath.Join(d.dir, "containerd.log"))
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	cmd := exec.Command(filepath.Join(d.tools, "containerd"), "--config", config)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.Env = append(os.Environ(), "NVIDIA_SHIM_CONFIG="+d.config, "PATH="+bin+":"+d.tools+":"+os.Getenv("PATH"))
	// Ctrl-C is for the demo, which then stops containerd in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: run `make build tools`", err)
	}
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
	for range 100 {
		if d.ctr(ctx, "version").Run() == nil {
			return stop, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	data, _ := os.ReadFile(logFile.Name())
	return nil, fmt.Errorf("containerd did not start:\n%s", data)
}

// clean takes away what the demo made; a shim that is about to end is waited for.
func (d *demo) clean() error {
	var err error
	for range 50 {
		err = d.unmount()
		if err == nil {
			if err = os.RemoveAll(d.dir); err == nil {
				return nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

// unmount unmounts everything below the demo's directory, the inner first.
func (d *demo) unmount() error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(string(data), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 4 && strings.HasPrefix(f[4], d.dir+"/") {
			if err := unix.Unmount(f[4], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("unmount %s: %w", f[4], err)
			}
		}
	}
	return nil
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }
