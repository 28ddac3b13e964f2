package shim

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/runc"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

func TestInfo(t *testing.T) {
	m := newManager()
	foreign := marshal(t, &anypb.Any{TypeUrl: "example.com/x.Options", Value: []byte{1}})
	if _, err := m.Info(t.Context(), bytes.NewReader(foreign)); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("options of another runtime: %v", err)
	}
	if _, err := m.Info(t.Context(), strings.NewReader("\xff\xff")); err == nil {
		t.Error("an invalid message was accepted")
	}
	absent := &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: marshal(t, &runcoptions.Options{BinaryName: "/nowhere/runc"})}
	info, err := m.Info(t.Context(), bytes.NewReader(marshal(t, absent)))
	if err != nil || info.Name != runtimeName || info.Version.Version != version.Version {
		t.Errorf("without runc: %v, %v", info, err)
	}
}

// The embedded manager only warns if runc cannot delete the container.
func TestStopFailsIfRuncStillHasTheContainer(t *testing.T) {
	dir, root := t.TempDir(), t.TempDir()
	err := errors.Join(os.Mkdir(filepath.Join(dir, "c"), 0o755), os.MkdirAll(filepath.Join(root, "ns", "c"), 0o755),
		runc.WriteRuntime(filepath.Join(dir, "c"), "/bin/false"), runc.WriteOptions(filepath.Join(dir, "c"), &runcoptions.Options{Root: root}))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(dir, "c"))
	ctx := namespaces.WithNamespace(t.Context(), "ns")
	if _, err := newManager().Stop(ctx, "c"); err == nil || !strings.Contains(err.Error(), "runc still has "+root+"/ns/c") {
		t.Errorf("Stop: %v", err)
	}
	if err := os.Remove(filepath.Join(root, "ns", "c")); err != nil {
		t.Fatal(err)
	}
	if _, err := newManager().Stop(ctx, "c"); err != nil {
		t.Errorf("Stop of a container that runc does not have: %v", err)
	}
}
