package shim

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Options are a runtime handler's options in the form that the shim works with.
type Options struct {
	// Runc is what the embedded service and go-runc get.
	Runc *options.Options
	// Overrides is the handler's TOML where it has the tables [policy] or [container],
	// for config.Override; empty without.
	Overrides []byte
	// SystemdCgroupSet says that the handler named SystemdCgroup explicitly.
	SystemdCgroupSet bool
	// sent is the message that says the same as Runc already; nil where there is none.
	sent *anypb.Any
}

// runcOptions is the name of the type of runc's own options.
const runcOptions = "containerd.runc.v1.Options"

// Translate turns the runtime options of a request into Options. containerd sends
// nothing, runc's own Options (runtime_type io.containerd.runc.v2, or hostUsers:
// false), or runtimeoptions, which carry the handler's TOML table (ConfigBody) or
// name a file with one (ConfigPath). Every other type is refused by name: the
// embedded service would end the process over it (runc/container.go asserts the
// type), and with it the management of the pod.
func Translate(any *anypb.Any) (Options, error) {
	if any == nil || any.GetTypeUrl() == "" && len(any.GetValue()) == 0 {
		// Without a value the embedded service reads nothing.
		return Options{Runc: &options.Options{}, sent: &anypb.Any{TypeUrl: runcOptions}}, nil
	}
	// The name is behind the last slash, where there is one: typeurl leaves the
	// prefix out that anypb writes.
	name := any.GetTypeUrl()[strings.LastIndexByte(any.GetTypeUrl(), '/')+1:]
	switch name {
	case runcOptions:
		o := &options.Options{}
		if err := proto.Unmarshal(any.GetValue(), o); err != nil {
			return Options{}, fmt.Errorf("runtime options of type %q: %s: %w", name, err.Error(), errdefs.ErrInvalidArgument)
		}
		out := Options{Runc: o, SystemdCgroupSet: o.SystemdCgroup}
		if any.GetTypeUrl() == name {
			out.sent = any
		}
		return out, nil
	case "runtimeoptions.v1.Options", "cri.runtimeoptions.v1.Options":
		o := &runtimeoptions.Options{}
		if err := proto.Unmarshal(any.GetValue(), o); err != nil {
			return Options{}, fmt.Errorf("runtime options of type %q: %s: %w", name, err.Error(), errdefs.ErrInvalidArgument)
		}
		return fromTOML(o)
	}
	return Options{}, fmt.Errorf("runtime options of type %.256q are not supported: use containerd.runc.v1.Options, or runtimeoptions.v1.Options with runc's keys: %w",
		any.GetTypeUrl(), errdefs.ErrInvalidArgument)
}

// table is a handler's options table. The keys are runc's, in containerd's spelling.
type table struct {
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

	// The keys by which CRI finds the table itself; they are no options.
	TypeURL    string `toml:"TypeUrl"`
	ConfigPath string
	ConfigBody string

	Policy    *config.Policy    `toml:"policy"`
	Container *config.Container `toml:"container"`
}

// fromTOML reads the handler's table, from the request or the file that it names.
func fromTOML(o *runtimeoptions.Options) (Options, error) {
	body, where := o.GetConfigBody(), "runtime options"
	if len(body) == 0 && o.GetConfigPath() != "" {
		var err error
		where = "runtime options " + o.GetConfigPath()
		if body, err = config.ReadTrusted(o.GetConfigPath()); err != nil {
			return Options{}, fmt.Errorf("%s: %s: %w", where, err.Error(), errdefs.ErrInvalidArgument)
		}
	}
	var t table
	if err := toml.NewDecoder(bytes.NewReader(body)).DisallowUnknownFields().Decode(&t); err != nil {
		return Options{}, fmt.Errorf("%s: %s: %w", where, config.Describe(err), errdefs.ErrInvalidArgument)
	}
	out := Options{
		Runc: &options.Options{
			NoPivotRoot: t.NoPivotRoot, NoNewKeyring: t.NoNewKeyring, ShimCgroup: t.ShimCgroup,
			IoUid: t.IoUID, IoGid: t.IoGID, BinaryName: t.BinaryName, Root: t.Root,
			CriuImagePath: t.CriuImagePath, CriuWorkPath: t.CriuWorkPath,
		},
		SystemdCgroupSet: t.SystemdCgroup != nil,
	}
	if t.SystemdCgroup != nil {
		out.Runc.SystemdCgroup = *t.SystemdCgroup
	}
	if t.Policy != nil || t.Container != nil {
		out.Overrides = body
		// A handler with a broken table fails its first container, GPU or not: the
		// table is in containerd's configuration, and no container may depend on it.
		if err := config.Default().Override(out.Overrides); err != nil {
			return Options{}, fmt.Errorf("%s: %s: %w", where, err.Error(), errdefs.ErrInvalidArgument)
		}
	}
	return out, nil
}

// message is the Any that the embedded service gets.
func (o Options) message() (*anypb.Any, error) {
	if o.sent != nil {
		return o.sent, nil
	}
	value, err := proto.Marshal(o.Runc)
	if err != nil {
		return nil, err
	}
	return &anypb.Any{TypeUrl: runcOptions, Value: value}, nil
}

// systemdForm tells whether the configuration names a systemd unit,
// "slice:prefix:name", rather than a cgroup path. runc with the wrong driver puts
// the container into a cgroup of that literal name, outside the pod's, or fails;
// so the form decides (runc libcontainer/specconv, specconvCgroupsPath; gVisor
// issue 13301). known is false where there is no cgroupsPath.
func systemdForm(raw []byte) (systemd, known bool) {
	path, ok := bundle.CgroupsPath(raw)
	if !ok {
		return false, false
	}
	parts := strings.Split(path, ":")
	return len(parts) == 3 && (parts[0] == "" || strings.HasSuffix(parts[0], ".slice")), true
}
