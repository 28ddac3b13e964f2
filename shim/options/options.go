package options

import (
	"fmt"
	"strings"

	runc "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Options are a runtime handler's options.
type Options struct {
	// Runc is for the embedded service and go-runc.
	Runc *runc.Options
	// Overrides holds the handler's tables [policy] and [container], if it has them, for
	// config.Override.
	Overrides []byte
	// SystemdCgroupSet reports whether the handler sets SystemdCgroup explicitly.
	SystemdCgroupSet bool
}

// Types of runtime options. containerd 1.6 uses the last one.
const (
	typeRunc       = "containerd.runc.v1.Options"
	typeRuntime    = "runtimeoptions.v1.Options"
	typeOldRuntime = "cri.runtimeoptions.v1.Options"
)

// typeName returns the type of a message without the prefix that anypb writes before it and
// typeurl leaves out.
func typeName(message *anypb.Any) string {
	url := message.GetTypeUrl()
	return url[strings.LastIndexByte(url, '/')+1:]
}

// Is reports whether message holds runtime options of a type that Translate accepts.
func Is(message *anypb.Any) bool {
	switch typeName(message) {
	case typeRunc, typeRuntime, typeOldRuntime:
		return true
	}
	return false
}

// Translate turns the runtime options of a request into Options. containerd sends nothing,
// runc's own options (runtime_type io.containerd.runc.v2, or hostUsers: false), or
// runtimeoptions, which hold the handler's TOML table (ConfigBody) or name a file with one
// (ConfigPath). Any other type is refused: the embedded service would panic over it
// (runc/container.go asserts the type) and end the management of the pod.
func Translate(message *anypb.Any) (Options, error) {
	out, o := Options{Runc: &runc.Options{}}, &runtimeoptions.Options{}
	switch typeName(message) {
	case typeRunc:
		err := unmarshal(message, out.Runc)
		out.SystemdCgroupSet = out.Runc.SystemdCgroup
		return out, err
	case typeRuntime, typeOldRuntime:
		if err := unmarshal(message, o); err != nil {
			return Options{}, err
		}
	default:
		if message.GetTypeUrl() == "" && len(message.GetValue()) == 0 { // guard: shim: unknown options refused
			return out, nil
		}
		return Options{}, fmt.Errorf("runtime options of type %.256q are not supported: use containerd.runc.v1.Options, or runtimeoptions.v1.Options with runc's keys: %w",
			message.GetTypeUrl(), errdefs.ErrInvalidArgument)
	}
	body, source := o.GetConfigBody(), "runtime options"
	if len(body) == 0 && o.GetConfigPath() != "" {
		var err error
		source = "runtime options " + o.GetConfigPath()
		if body, err = config.ReadTrusted(o.GetConfigPath()); err != nil {
			return Options{}, fmt.Errorf("%s: %s: %w", source, err.Error(), errdefs.ErrInvalidArgument)
		}
	}
	out, err := fromTOML(body)
	if err != nil && len(o.GetConfigBody()) > 0 {
		err = config.WithoutLine(err)
	}
	if err != nil {
		return Options{}, fmt.Errorf("%s: %s: %w", source, err.Error(), errdefs.ErrInvalidArgument)
	}
	return out, nil
}

// unmarshal decodes the value of message into o.
func unmarshal(message *anypb.Any, o proto.Message) error {
	if err := proto.Unmarshal(message.GetValue(), o); err != nil {
		return fmt.Errorf("runtime options of type %q: %s: %w", typeName(message), err.Error(), errdefs.ErrInvalidArgument)
	}
	return nil
}

// Table is a handler's options table. The keys are runc's, in containerd's spelling.
type Table struct {
	NoPivotRoot   bool
	NoNewKeyring  bool
	ShimCgroup    string
	IoUID         uint32 `toml:"IoUid"`
	IoGID         uint32 `toml:"IoGid"`
	BinaryName    string
	Root          string
	SystemdCgroup *bool
	CriuImagePath string
	CriuWorkPath  string

	// CRI finds the table by these keys. They mean nothing here.
	TypeURL    string `toml:"TypeUrl"`
	ConfigPath string
	ConfigBody string

	Policy    map[string]any `toml:"policy"`
	Container map[string]any `toml:"container"`
}

// fromTOML decodes a handler's options table.
func fromTOML(body []byte) (Options, error) {
	var t Table
	if err := config.Decode(body, &t); err != nil {
		return Options{}, err
	}
	out := Options{
		Runc: &runc.Options{
			NoPivotRoot: t.NoPivotRoot, NoNewKeyring: t.NoNewKeyring, ShimCgroup: t.ShimCgroup,
			IoUid: t.IoUID, IoGid: t.IoGID, BinaryName: t.BinaryName, Root: t.Root,
			CriuImagePath: t.CriuImagePath, CriuWorkPath: t.CriuWorkPath,
		},
		SystemdCgroupSet: t.SystemdCgroup != nil,
	}
	if t.SystemdCgroup != nil {
		out.Runc.SystemdCgroup = *t.SystemdCgroup
	}
	if len(t.Policy)+len(t.Container) == 0 {
		return out, nil
	}
	var err error
	if out.Overrides, err = toml.Marshal(map[string]any{"policy": t.Policy, "container": t.Container}); err != nil {
		return Options{}, err
	}
	// An invalid table fails every container of the handler, with or without a GPU: it is part of
	// containerd's configuration, not of the container's.
	return out, config.Default().Override(out.Overrides)
}

// RuncMessage translates the runtime options of a message into a message with runc's options, which
// the embedded service and manager read.
func RuncMessage(message *anypb.Any) (*anypb.Any, error) {
	opts, err := Translate(message)
	if err != nil {
		return nil, err
	}
	return anypb.New(opts.Runc)
}
