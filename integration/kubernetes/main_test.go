package kubernetes

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// inside is set in the environment of the test process that is in the namespaces.
const inside = "NVIDIA_SHIM_TEST_NAMESPACES"

// nodeIP is an address of documentation (RFC 5737) on the loopback interface of the
// test's network namespace: the kubelet takes no 127.0.0.1.
const nodeIP = "192.0.2.1"

// programs are what the tests need of bin/.
var programs = []string{
	"containerd-shim-nvidia-v2", "nvidia-shimctl", "nvidia-shim-nvml", "kubernetes/etcd", "kubernetes/kube-apiserver",
	"kubernetes/kube-scheduler", "kubernetes/kubelet", "kubernetes/cni/bridge",
	"kubernetes/cni/host-local", "kubernetes/cni/loopback", "kubernetes/nvidia-device-plugin", "kubernetes/gpu-kubelet-plugin",
}

// makeNode brings the node up; with the tag gpu, one with real GPUs.
var makeNode = start

// shared is the node of all tests.
var shared *cluster

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(inside) == "" {
		os.Exit(outside())
	}
	if err := errors.Join(setUpLoopback(), coverPlaces()); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
	life := &testenv.Lifetime{}
	code := 1
	life.EndOnSignal()
	err := life.Run(func() error {
		var err error
		if shared, err = makeNode(life); err != nil {
			return err
		}
		code = m.Run()
		if code != 0 {
			shared.logTails(life)
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		code = 1
	}
	os.Exit(code)
}

// outside runs the tests in a process with namespaces of its own and gives its exit
// status. The kubelet's changes of the kernel's settings are undone.
func outside() (code int) {
	if missing := testenv.Missing(programs...); len(missing) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: the tests of this package cannot run here:\n  - %s\n", strings.Join(missing, "\n  - "))
		return 1
	}
	restore, err := testenv.Share(places, testenv.KubeletSettings)
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return 1
	}
	defer func() {
		if err := restore(); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL: a setting of the kernel stays as the kubelet made it:", err)
			code = 1
		}
	}()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The os package makes all mounts of the new namespace private.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	runtime.LockOSThread() // Pdeathsig is about the thread that forked
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL: run the tests in namespaces of their own:", err)
		return 1
	}
	// If this process is told to end, it ends the tests, which then take the node down.
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for sig := range interrupted {
			_ = cmd.Process.Signal(sig)
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "FAIL: run the tests in namespaces of their own:", err)
	return 1
}

// binDir holds what build.sh makes.
func binDir() string { return filepath.Join(testenv.ShimDir(), "kubernetes") }

// places are those that containerd, runc and the kubelet use whatever they are told:
// each is an empty file system in the tests' mount namespace.
var places = []string{"/run/cdi", "/run/containerd", "/run/netns", "/var/lib/kubelet", "/var/log"}

// coverPlaces runs in the tests' mount namespace.
func coverPlaces() error {
	for _, dir := range places {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
		}
	}
	return nil
}

// setUpLoopback makes the namespace's loopback interface usable and gives it the
// node's address.
func setUpLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOOPBACK)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, up); err != nil {
		return fmt.Errorf("set the loopback interface up: %w", err)
	}
	address, err := unix.NewIfreq("lo:1")
	if err != nil {
		return err
	}
	ip := netip.MustParseAddr(nodeIP).As4()
	if err := address.SetInet4Addr(ip[:]); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, address); err != nil {
		return fmt.Errorf("give the loopback interface the address %s: %w", nodeIP, err)
	}
	return nil
}
