package shim

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
	"golang.org/x/sys/unix"
)

func TestGroupOf(t *testing.T) {
	for config, want := range map[string]string{
		`{"annotations":{"io.kubernetes.cri.sandbox-id": "pod"}}`:                                  "pod",
		`{"annotations":{"io.kubernetes.cri.sandbox-id":"pod","io.containerd.runc.v2.group":"g"}}`: "g",
		`{"annotations":{"io.containerd.runc.v2.group":"","io.kubernetes.cri.sandbox-id":"pod"}}`:  "",
		`{"process":{"env":["\"io.kubernetes.cri.sandbox-id\":\"x\""]},"annotations":{}}`:          "c1",
		`{"x":{"annotations":{"io.kubernetes.cri.sandbox-id":"x"}}}`:                               "c1",
		`{"annotations":`: "c1",
		``:                "c1",
	} {
		if got, err := groupOf(plainBundle(t, config), "c1"); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", config, got, err, want)
		}
	}
	if got, err := groupOf("/nonexistent", "c1"); err != nil || got != "c1" {
		t.Errorf("got %q, %v without a configuration", got, err)
	}
	dir := t.TempDir()
	check(t, os.Mkdir(filepath.Join(dir, "config.json"), 0o755))
	if got, err := groupOf(dir, "c1"); !errors.Is(err, unix.EISDIR) {
		t.Errorf("got %q, %v of a configuration that cannot be read", got, err)
	}
}

// groupMember makes the bundle of a container of group g the working directory, and returns the
// parameters of its `start` and the path of the group's socket.
func groupMember(t *testing.T) (ctx context.Context, params *bootapi.BootstrapParams, socket string) {
	t.Helper()
	t.Chdir(plainBundle(t, `{"annotations":{"io.containerd.runc.v2.group":"g"}}`))
	// A socket's path has a limit that t.TempDir may exceed.
	sockets, err := os.MkdirTemp("", "s")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(sockets) })
	params = &bootapi.BootstrapParams{InstanceID: "c1", Namespace: "ns", ContainerdGrpcAddress: "/run/c.sock", SocketDir: &sockets}
	ctx = namespaces.WithNamespace(t.Context(), "ns")
	address, err := ctrdshim.CreateSocketAddress(ctx, sockets, "/run/c.sock", "g", false)
	check(t, err)
	return ctx, params, strings.TrimPrefix(address, "unix://")
}

// listen makes a socket whose queue holds one connection.
func listen(t *testing.T, path string) (fd int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = unix.Listen(fd, 0)
	}
	check(t, err)
	return fd
}

// The embedded manager takes a shim for dead that it cannot connect to within 100 ms.
func TestStartJoinsTheGroupsShimHoweverLongItTakes(t *testing.T) {
	ctx, params, socket := groupMember(t)
	fd := listen(t, socket)
	defer unix.Close(fd)
	if found, err := connects(socket); !found { // the queue is full now
		t.Fatalf("cannot connect: %v", err)
	}
	time.AfterFunc(300*time.Millisecond, func() {
		if conn, _, err := unix.Accept(fd); err == nil {
			unix.Close(conn)
		}
	})
	embedded := &embeddedManager{address: "unix:///another"}
	result, err := (&shimManager{Shim: embedded}).Start(ctx, params)
	check(t, err)
	if embedded.params != nil || result.GetAddress() != "unix://"+socket || result.GetVersion() != 3 || result.GetProtocol() != "ttrpc" {
		t.Errorf("got %v; a second shim was started: %v", result, embedded.params != nil)
	}
	if data, err := os.ReadFile("address"); err != nil || string(data) != result.GetAddress() {
		t.Errorf("address: %q, %v", data, err)
	}
}

func TestStartDoesNotJoinADeadShim(t *testing.T) {
	ctx, params, socket := groupMember(t)
	start := func(state string) {
		embedded := &embeddedManager{address: "unix:///new"}
		result, err := (&shimManager{Shim: embedded}).Start(ctx, params)
		if err != nil || result.GetAddress() != embedded.address {
			t.Errorf("%s: got %v, %v", state, result, err)
		}
	}
	start("no socket")
	unix.Close(listen(t, socket))
	start("a socket without a listener")
}

// A second shim would take the socket of the first, whose containers the next containerd kills.
func TestNoShimIsStartedIfItIsUnknownWhetherTheGroupHasOne(t *testing.T) {
	ctx, params, socket := groupMember(t)
	check(t, os.Symlink(filepath.Base(socket), socket)) // connect(2): ELOOP
	embedded := &embeddedManager{address: "unix:///new"}
	_, err := (&shimManager{Shim: embedded}).Start(ctx, params)
	if !errors.Is(err, unix.ELOOP) || embedded.params != nil {
		t.Errorf("error %v, a shim was started: %v", err, embedded.params != nil)
	}
	if _, err := os.Lstat("address"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("address: %v", err)
	}
}

// Nothing would end a shim that containerd does not know of.
func TestNoShimIsStartedIfItsAddressCannotBeKept(t *testing.T) {
	ctx, params, _ := groupMember(t)
	check(t, os.Mkdir("address", 0o755))
	embedded := &embeddedManager{address: "unix:///new"}
	if _, err := (&shimManager{Shim: embedded}).Start(ctx, params); err == nil || embedded.params != nil {
		t.Errorf("error %v, a shim was started: %v", err, embedded.params != nil)
	}
}
