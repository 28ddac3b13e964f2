package shim

import (
	"bytes"
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

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
)

// probeName is the program beside the shim that answers what the shim does not ask
// itself: a gRPC client, or a library that may hang, stays out of a process that
// manages a pod.
const probeName = "nvidia-shimctl"

// probeTimeout bounds every question. A kubelet answers in milliseconds.
const probeTimeout = 5 * time.Second

// askKubelet runs the probe for what the kubelet allocated to a pod.
func askKubelet(socket, namespace, pod string) (policy.Allocation, error) {
	var a policy.Allocation
	if _, err := os.Lstat(socket); errors.Is(err, os.ErrNotExist) {
		return a, policy.ErrNoKubelet
	}
	out, err := probe("probe", "pod-resources", "--socket="+socket, "--namespace="+namespace, "--pod="+pod)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(out, &a); err != nil {
		return a, fmt.Errorf("%s answered what is no JSON: %w", probeName, err)
	}
	return a, nil
}

// probe runs the probe with an empty environment and returns what it printed. The
// reaper waits for it: this process reaps whatever child ends, so that waiting for
// one by oneself loses the race (containerd issue 2855).
func probe(args ...string) ([]byte, error) {
	path, err := probePath()
	if err != nil {
		return nil, err
	}
	var stdout, stderr bounded
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	ec, err := reaper.Default.StartLocked(cmd)
	if err != nil {
		return nil, err
	}
	status, err := reaper.Default.WaitTimeout(cmd, ec, probeTimeout)
	if err != nil {
		return nil, fmt.Errorf("%s did not answer within %s", probeName, probeTimeout)
	}
	if status != 0 {
		line, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		return nil, errors.New(strings.TrimPrefix(line, probeName+": "))
	}
	return stdout.Bytes(), nil
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

// maxProbeOutput bounds what a probe may print, in bytes; the rest is dropped and
// makes no JSON.
const maxProbeOutput = 4 << 20

type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxProbeOutput {
		return len(p), nil
	}
	return b.Buffer.Write(p)
}
