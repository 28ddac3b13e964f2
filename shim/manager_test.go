package shim

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
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
