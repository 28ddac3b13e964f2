package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/bounded"
)

// probeName is the program beside the shim that answers what the shim does not ask
// itself: a gRPC client, or a library that may hang, stays out of a process that
// manages a pod.
const probeName = "nvidia-shimctl"

// kubeletTimeout bounds a question to the kubelet, which answers in milliseconds.
// A variable for the tests, as the next one.
var kubeletTimeout = 5 * time.Second

// nvmlTimeout bounds a question to NVML; the probe is told to give up before. Without
// persistence mode the driver initialises every GPU first, which takes seconds.
var nvmlTimeout = 10 * time.Second

// nvmlGrace is what a probe that gives up has to say so.
const nvmlGrace = 2 * time.Second

// askKubelet runs the probe for what the kubelet allocated to a pod.
func askKubelet(socket, namespace, pod string) (policy.Allocation, error) {
	var a policy.Allocation
	if _, err := os.Lstat(socket); errors.Is(err, os.ErrNotExist) {
		return a, policy.ErrNoKubelet
	}
	err := probe(kubeletTimeout, &a, "probe", "pod-resources", "--socket="+socket, "--namespace="+namespace, "--pod="+pod)
	return a, err
}

// cdiTimeout bounds the reading of CDI specifications, which are files of this host.
var cdiTimeout = 5 * time.Second

// askCDI runs the probe for what CDI specifications say of other vendors' devices. The
// names come from the container: they have the few characters of CDI names, and no
// shell ever sees them.
func askCDI(r bundle.CDIRequest) (*bundle.CDIEdits, error) {
	args := []string{"probe", "cdi", fmt.Sprintf("--uid=%d", r.UID), fmt.Sprintf("--gid=%d", r.GID)}
	if r.UserNamespace {
		args = append(args, "--user-namespace")
	}
	for _, dir := range r.Dirs {
		args = append(args, "--dir="+dir)
	}
	for _, name := range r.Names {
		args = append(args, "--device="+name)
	}
	var e bundle.CDIEdits
	err := probe(cdiTimeout, &e, args...)
	return &e, err
}

// askNVML runs the probe for what only NVML knows of this host's GPUs. Where the
// configuration is comes from containerd's environment, as this process' own does;
// nothing comes from a container.
func askNVML() (device.Facts, error) {
	var f device.Facts
	args := []string{"probe", "nvml", "--timeout=" + nvmlTimeout.String()}
	if name := os.Getenv(config.EnvFile); name != "" {
		args = append([]string{"--config=" + name}, args...)
	}
	err := probe(nvmlTimeout+nvmlGrace, &f, args...)
	return f, err
}

// probe runs the probe with an empty environment and decodes what it prints into v.
// The reaper waits for it: this process reaps whatever child ends, so that waiting
// for one by oneself loses the race (containerd issue 2855).
//
// A probe that does not end is killed and left to itself: one that hangs in the
// kernel takes notice of no signal. What waits for it, a goroutine for the process
// and one for each of its two pipes, stays until it ends. There is one such process
// on a host: the next one finds its lock taken (cmd/nvidia-shimctl) and gives up.
func probe(limit time.Duration, v any, args ...string) error {
	path, err := probePath()
	if err != nil {
		return err
	}
	stdout, stderr := bounded.Buffer{Most: maxProbeOutput}, bounded.Buffer{Most: maxProbeOutput}
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	ec, err := reaper.Default.StartLocked(cmd)
	if err != nil {
		return err
	}
	status, err := reaper.Default.WaitTimeout(cmd, ec, limit)
	if err != nil {
		return fmt.Errorf("%s did not answer within %s", probeName, limit)
	}
	if status != 0 {
		if line := stderr.FirstLine(probeName); line != "" {
			return errors.New(line)
		}
		return fmt.Errorf("%s ended with status %d and said nothing", probeName, status)
	}
	if stdout.TooLong {
		return fmt.Errorf("%s answered more than %d bytes", probeName, maxProbeOutput)
	}
	if err := json.Unmarshal(stdout.Kept, v); err != nil {
		return fmt.Errorf("%s answered what is no JSON: %w", probeName, err)
	}
	return nil
}

// probePath is the probe beside this very executable, if only root can have put it
// there.
func probePath() (string, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", err
	}
	// After an upgrade by rename the running file has no name any more.
	path := filepath.Join(filepath.Dir(strings.TrimSuffix(self, " (deleted)")), probeName)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", fmt.Errorf("%s is not beside the shim: install it at %s: %w", probeName, path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != uint32(os.Geteuid()) && st.Uid != 0 || st.Mode&0o022 != 0 {
		return "", fmt.Errorf("%s can be changed by others than root: chown it to root and chmod go-w it", path)
	}
	return path, nil
}

// maxProbeOutput bounds what a probe may print, in bytes; the rest is dropped.
const maxProbeOutput = 4 << 20
