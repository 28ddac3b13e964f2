package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxInput limits what is read from standard input; containerd's shim library has
// the same limit.
const maxInput = 10 << 20

// Run is the shim's main: containerd's RunShim, for every containerd.
//
// Since 2.3 containerd writes BootstrapParams to the standard input of `start` and
// takes a BootstrapResult. Daemons before (1.6, 1.7, 2.0 to 2.2) say everything in
// flags and the environment, write at most the runtime options, and take an
// address; containerd's library turns them away (containerd issues 13763, 13802,
// 13910). They are answered here; everybody else, and every other action, is the
// library's.
func Run(ctx context.Context) {
	s := NewManager()
	i, action := parse(os.Args[1:])
	switch action {
	case "start":
		// containerd takes standard error for a part of the answer.
		log.L.Logger.SetOutput(io.Discard)
		done, err := i.start(ctx, s)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %s", s.Name(), err)
			os.Exit(1)
		}
		if done {
			return
		}
	case serve:
		ctx = lookAhead(ctx, ".") // the bundle
	}
	ctrdshim.RunShim(ctx, s)
}

// invocation is a command line of containerd or of the shim itself.
type invocation struct {
	id, namespace, address string
	debug                  bool
}

// serve is the action of the process that serves the Task API: none. other is every
// action that is nobody's business here, and what comes of flags that no containerd uses:
// RunShim says what is wrong with those.
const serve, other = "", "other"

// parse reads a command line and returns the action.
func parse(args []string) (i invocation, action string) {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&i.id, "id", "", "")
	fs.StringVar(&i.namespace, "namespace", "", "")
	fs.StringVar(&i.address, "address", "", "")
	fs.BoolVar(&i.debug, "debug", false, "")
	for _, name := range []string{"publish-binary", "bundle", "socket", "debug-socket"} {
		fs.String(name, "", "")
	}
	var print bool
	for _, name := range []string{"v", "version", "info"} {
		fs.BoolVar(&print, name, print, "")
	}
	if err := fs.Parse(args); err != nil || print || i.namespace == "" {
		return i, other
	}
	return i, fs.Arg(0)
}

// start answers a daemon before 2.3. For one since 2.3 done is false, and standard
// input is as it was.
func (i invocation) start(ctx context.Context, s ctrdshim.Shim) (done bool, err error) {
	input, err := io.ReadAll(io.LimitReader(os.Stdin, maxInput))
	if err != nil {
		return false, fmt.Errorf("read standard input: %w", err)
	}
	params, legacy, err := i.legacyParams(input, os.Getenv("TTRPC_ADDRESS"))
	if err != nil {
		return false, err
	}
	if !legacy {
		return false, putBack(input)
	}
	ctx = namespaces.WithNamespace(ctx, i.namespace)
	ctx = context.WithValue(ctx, ctrdshim.OptsKey{}, ctrdshim.Opts{Debug: i.debug})
	result, err := s.Start(ctx, params)
	if err != nil {
		return false, err
	}
	// The one form that all of them take. It means version 2 of the Task API over
	// ttrpc; nothing tells a shim whether the daemon knows version 3.
	_, err = os.Stdout.WriteString(result.GetAddress())
	return true, err
}

// legacyParams makes the parameters that a daemon since 2.3 would have sent.
// legacy is false where input holds them: that is known by the container's name
// and namespace, as an old daemon's options may decode as BootstrapParams as well.
func (i invocation) legacyParams(input []byte, ttrpcAddress string) (params *bootapi.BootstrapParams, legacy bool, err error) {
	params = &bootapi.BootstrapParams{}
	if len(input) > 0 && proto.Unmarshal(input, params) == nil &&
		params.GetInstanceID() == i.id && params.GetNamespace() == i.namespace {
		return nil, false, nil
	}
	params = &bootapi.BootstrapParams{
		InstanceID:             i.id,
		Namespace:              i.namespace,
		ContainerdGrpcAddress:  i.address,
		ContainerdTtrpcAddress: ttrpcAddress,
		LogLevel:               bootapi.LogLevel_LOG_LEVEL_INFO,
	}
	if i.debug {
		params.LogLevel = bootapi.LogLevel_LOG_LEVEL_DEBUG
	}
	if len(input) == 0 {
		return params, true, nil
	}
	var options anypb.Any
	if err := proto.Unmarshal(input, &options); err != nil {
		return nil, true, fmt.Errorf("standard input holds neither bootstrap parameters nor runtime options: %w", err)
	}
	if _, err := Translate(&options); err != nil {
		return nil, true, err
	}
	return params, true, params.AddExtension(&options)
}

// putBack makes standard input readable once more, for RunShim.
func putBack(input []byte) error {
	fd, err := unix.MemfdCreate("bootstrap", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("keep standard input: %w", err)
	}
	f := os.NewFile(uintptr(fd), os.Stdin.Name())
	if _, err := f.Write(input); err != nil {
		return fmt.Errorf("keep standard input: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("keep standard input: %w", err)
	}
	os.Stdin = f
	return nil
}

// writeAddress notes in a bundle where its shim is, as shims before 2.3 did.
// containerd 1.6 and 1.7 find the shim by it after a restart, and a server removes
// the socket of that name when it ends: without, the socket of a pod that is not
// named after its first container stays.
func writeAddress(dir, address string) error {
	return os.WriteFile(filepath.Join(dir, "address"), []byte(address), 0o644)
}

// groupAnnotations name the pod that a container shares the shim with, in the
// order in which the embedded manager looks for them.
var groupAnnotations = []string{"io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"}

// keptVersion is the version of the Task API that the pod's shim was started with,
// where the container in the bundle dir joins a running one at address; 0 where it
// does not. Its server may be of another build than this one, and containerd must
// not be told another version than at first (containerd issues 10888, 10984, 11793,
// 11916).
func keptVersion(dir, id, address string) int32 {
	group := groupOf(filepath.Join(dir, "config.json"))
	if group == "" || group == id {
		return 0
	}
	// A pod is named after its first container. Any other name of a group says
	// nothing about where that one is.
	bundles := filepath.Dir(dir)
	if version := versionIn(filepath.Join(bundles, filepath.Base(group)), address); version != 0 {
		return version
	}
	entries, _ := os.ReadDir(bundles)
	for _, entry := range entries {
		if entry.Name() == id {
			continue
		}
		if version := versionIn(filepath.Join(bundles, entry.Name()), address); version != 0 {
			return version
		}
	}
	return 0
}

// groupOf finds the group in a configuration without decoding it; empty without.
func groupOf(config string) string {
	raw, err := os.ReadFile(config)
	if err != nil {
		return ""
	}
	for _, name := range groupAnnotations {
		_, rest, ok := bytes.Cut(raw, []byte(`"`+name+`"`))
		if !ok {
			continue
		}
		rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":"))
		if !ok {
			continue
		}
		var value string
		if json.NewDecoder(bytes.NewReader(rest)).Decode(&value) == nil {
			return value
		}
	}
	return ""
}

// versionIn is the version that containerd, or this shim, noted in a bundle for the
// shim at address; 0 where the bundle has no shim or another.
func versionIn(bundle, address string) int32 {
	if data, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json")); err == nil {
		var noted struct {
			Version int32  `json:"version"`
			Address string `json:"address"`
		}
		if json.Unmarshal(data, &noted) == nil && noted.Address == address {
			return noted.Version
		}
		return 0
	}
	if data, err := os.ReadFile(filepath.Join(bundle, "address")); err == nil && strings.TrimSpace(string(data)) == address {
		return 2
	}
	return 0
}
