package shim

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/shim/options"
)

// Run is the main function of the shim: containerd's RunShim, for every version of containerd.
//
// Since 2.3 containerd writes BootstrapParams to the standard input of `start` and expects a
// BootstrapResult. Older daemons (1.6, 1.7, 2.0 to 2.2) pass flags and environment variables,
// write at most the runtime options, and expect an address; containerd's library refuses them
// (containerd issues 13763, 13802, 13910). Their `start` is answered here, and everything else by
// the library.
func Run(ctx context.Context) {
	m := newManager()
	if c, ok := parseStart(os.Args[1:]); ok {
		// containerd reads standard error as part of the answer.
		log.L.Logger.SetOutput(io.Discard)
		answered, err := c.answerOlderDaemon(ctx, m)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %s", m.Name(), err)
			os.Exit(1)
		}
		if answered {
			return
		}
	}
	if socket := socketAt(socketDescriptor); socket != "" {
		ctx = withStartLimit(ctx, socket, os.Exit)
	}
	ctrdshim.RunShim(ctx, m)
}

// startCommand holds the flags of `start`.
type startCommand struct {
	id, namespace, address string
	debug                  bool
}

// parseStart reads a command line. ok is false if it is not containerd's `start`.
func parseStart(args []string) (c startCommand, ok bool) {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&c.id, "id", "", "")
	fs.StringVar(&c.namespace, "namespace", "", "")
	fs.StringVar(&c.address, "address", "", "")
	fs.BoolVar(&c.debug, "debug", false, "")
	fs.String("publish-binary", "", "")
	err := fs.Parse(args)
	return c, err == nil && c.namespace != "" && fs.Arg(0) == "start"
}

// answerOlderDaemon answers a daemon before 2.3. For a newer one answered is false, and standard
// input can be read again.
func (c startCommand) answerOlderDaemon(ctx context.Context, m ctrdshim.Shim) (answered bool, err error) {
	input, err := io.ReadAll(io.LimitReader(os.Stdin, maxInput))
	if err != nil {
		return false, fmt.Errorf("read standard input: %w", err)
	}
	if c.isBootstrap(input) {
		return false, replaceStdin(input)
	}
	params, err := c.params(input)
	if err != nil {
		return false, err
	}
	result, err := m.Start(namespaces.WithNamespace(ctx, c.namespace), params)
	if err != nil {
		return false, err
	}
	// All older daemons accept the bare address. It means version 2 of the Task API over ttrpc:
	// a shim cannot know whether the daemon supports version 3.
	_, err = os.Stdout.WriteString(result.GetAddress())
	return true, err
}

// isBootstrap reports whether input holds the BootstrapParams of a daemon since 2.3. The id and
// the namespace decide, because an older daemon's options may decode as BootstrapParams too.
func (c startCommand) isBootstrap(input []byte) bool {
	params := &bootapi.BootstrapParams{}
	return len(input) > 0 && proto.Unmarshal(input, params) == nil &&
		params.GetInstanceID() == c.id && params.GetNamespace() == c.namespace
}

// params returns the parameters that a daemon since 2.3 would have sent. input is empty or holds
// the runtime options.
func (c startCommand) params(input []byte) (*bootapi.BootstrapParams, error) {
	params := &bootapi.BootstrapParams{
		InstanceID:             c.id,
		Namespace:              c.namespace,
		ContainerdGrpcAddress:  c.address,
		ContainerdTtrpcAddress: os.Getenv("TTRPC_ADDRESS"),
		LogLevel:               bootapi.LogLevel_LOG_LEVEL_INFO,
	}
	if c.debug {
		params.LogLevel = bootapi.LogLevel_LOG_LEVEL_DEBUG
	}
	if len(input) == 0 {
		return params, nil
	}
	var message anypb.Any
	if err := proto.Unmarshal(input, &message); err != nil {
		return nil, fmt.Errorf("standard input holds neither bootstrap parameters nor runtime options: %w", err)
	}
	if _, err := options.Translate(&message); err != nil {
		return nil, err
	}
	return params, params.AddExtension(&message)
}

func replaceStdin(input []byte) error {
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err == nil {
		os.Stdin = os.NewFile(uintptr(fd), "stdin")
		_, err = os.Stdin.Write(input)
	}
	if err == nil {
		_, err = os.Stdin.Seek(0, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("replace standard input: %w", err)
	}
	return nil
}
