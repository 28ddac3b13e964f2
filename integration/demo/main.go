package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/mounts"
)

const imageRef = "demo.local/gpu:latest"

func main() {
	bin := flag.String("bin", "bin", "directory with the shim; its tools/ has containerd, ctr and runc")
	gpus := flag.Int("gpus", 4, "number of GPUs if they are simulated")
	flag.Parse()
	life := &testenv.Lifetime{}
	life.EndOnSignal()
	if err := life.Run(func() error { return run(life, *bin, *gpus) }); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// demo is a running demonstration.
type demo struct {
	*testenv.Env
	life   *testenv.Lifetime
	real   bool
	failed error
}

func run(life *testenv.Lifetime, bin string, gpus int) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	os.Setenv("NVIDIA_SHIM_BIN", bin)
	if missing := testenv.Missing("containerd-shim-nvidia-v2"); len(missing) > 0 {
		return fmt.Errorf("this host lacks: %s", strings.Join(missing, "; "))
	}
	dir, err := os.MkdirTemp("", "nvdemo")
	if err != nil {
		return err
	}
	life.Cleanup(func() {
		if err := mounts.RemoveAll(dir); err != nil {
			life.Error(err)
		}
	})
	d := &demo{life: life}
	_, statErr := os.Stat("/proc/driver/nvidia/version")
	d.real = statErr == nil
	config := filepath.Join(dir, "shim.toml")
	if d.real {
		say("This host has an NVIDIA driver: it is used.")
		if err := os.WriteFile(config, []byte("[host]\nstate-dir = \""+filepath.Join(dir, "state")+"\"\n"), 0o644); err != nil {
			return err
		}
	} else {
		say("This host has no NVIDIA driver: %d GPUs are simulated (integration/simdriver).", gpus)
		config = sim.New(life, sim.Options{Dir: filepath.Join(dir, "sim"), GPUs: gpus}).ConfigPath
	}
	image := filepath.Join(dir, "image.tar")
	content, err := images.FromHostPrograms(imageRef, []string{"sh", "ls", "cat", "grep", "mknod", "rm", "echo", "true"})
	if err != nil {
		return err
	}
	if err := content.Write(image); err != nil {
		return err
	}
	d.Env = testenv.Start(life, testenv.Options{ShimConfig: config, ShimDir: bin})
	say("A private containerd runs in %s. NVIDIA_SHIM_CONFIG=%s", d.Dir, config)
	d.Import(life, image)
	d.show()
	return d.failed
}

// show runs the commands that a reader should see.
func (d *demo) show() {
	say("\nOne GPU, and only that one:")
	d.container("0", "nvidia-smi", "-L")
	say("\nThe dynamic loader of the image knows the driver; no ldconfig ran:")
	d.container("0", "sh", "-c", "ldconfig -p | grep libcuda")
	open := "permitted means that the device cgroup let it pass"
	if !d.real {
		open += "; there is no real driver behind a simulated node"
	}
	say("\nWhich device nodes may be opened, also after mknod (%s):", open)
	d.container("0", "sh", "-c", `for m in 0 1 2 3; do rm -f /tmp/n; mknod /tmp/n c 195 $m; e=$( (exec 3<>/tmp/n) 2>&1 ); `+
		`case "$e" in *"not permitted"*) echo "195:$m refused";; *) echo "195:$m permitted";; esac; done; ls /dev | grep nvidia`)
	say("\nEvery GPU, by another way to say it:")
	d.container("all", "nvidia-smi", "-L")
	say("\nA container that asks for none has none:")
	d.container("", "sh", "-c", "ls /dev | grep nvidia || echo no NVIDIA device")
	say("\nA request that cannot be met says so:")
	d.refused("9")
}

// container runs one container and prints the command and what it printed. visible
// empty means without the variable.
func (d *demo) container(visible string, args ...string) {
	if out, err := d.run(visible, args...); err != nil {
		d.failed = errors.Join(d.failed, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out))
	}
}

// refused runs one container that must not start.
func (d *demo) refused(visible string) {
	if _, err := d.run(visible, "true"); err == nil {
		d.failed = errors.Join(d.failed, fmt.Errorf("NVIDIA_VISIBLE_DEVICES=%s was not refused", visible))
	}
}

func (d *demo) run(visible string, args ...string) (string, error) {
	o := testenv.RunOptions{Image: imageRef, ID: "demo", Args: args}
	command := "ctr run --rm --runtime " + testenv.DefaultRuntime
	if visible != "" {
		o.Env = []string{"NVIDIA_VISIBLE_DEVICES=" + visible}
		command += " --env " + o.Env[0]
	}
	command += " " + imageRef + " demo"
	for _, a := range args {
		if strings.ContainsAny(a, " |;$") {
			a = "'" + a + "'"
		}
		command += " " + a
	}
	fmt.Printf("$ %s\n", command)
	r, err := d.TryRun(d.life, o)
	text := r.Output + r.Error
	fmt.Print(text)
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("exit status %d", r.ExitCode)
	}
	return text, err
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }
