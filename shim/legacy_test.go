package shim

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	check(t, err)
	return data
}

// The command lines are those of containerd 1.6, 1.7, 2.2 and 2.4, whose flags come in different
// orders.
func TestParseStart(t *testing.T) {
	for _, tc := range []struct {
		args string
		want startCommand // zero: left to the library
	}{
		{"-namespace k8s.io -address /run/c.sock -publish-binary /usr/bin/containerd -id c1 start", startCommand{id: "c1", namespace: "k8s.io", address: "/run/c.sock"}},
		{"-namespace k8s.io -address /run/c.sock -publish-binary /usr/bin/containerd -id c1 -debug start", startCommand{id: "c1", namespace: "k8s.io", address: "/run/c.sock", debug: true}},
		{"-id c1 -namespace default -address /run/c.sock -publish-binary /usr/bin/containerd start", startCommand{id: "c1", namespace: "default", address: "/run/c.sock"}},
		{"-namespace default -address /run/c.sock -publish-binary /usr/bin/containerd -id c1 -bundle /b delete", startCommand{}},
		{"-namespace default -id c1 -address /run/c.sock delete", startCommand{}},
		{"-namespace default -id c1 -address /run/c.sock", startCommand{}}, // the server
		{"-info", startCommand{}},
		{"-v", startCommand{}},
		{"-namespace default -info start", startCommand{}},
		{"-id c1 start", startCommand{}},
		{"-namespace default -id c1 -nonesuch start", startCommand{}},
		{"", startCommand{}},
	} {
		got, ok := parseStart(strings.Fields(tc.args))
		if ok != (tc.want != startCommand{}) || ok && got != tc.want {
			t.Errorf("%q: got %+v, %v", tc.args, got, ok)
		}
	}
}

func TestParametersForOlderDaemons(t *testing.T) {
	t.Setenv("TTRPC_ADDRESS", "/run/c.sock.ttrpc")
	runc := &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: marshal(t, &runcoptions.Options{ShimCgroup: "/shims"})}
	unknownKey := &anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: marshal(t, &runtimeoptions.Options{ConfigBody: []byte("Nonesuch = 1")})}
	for _, tc := range []struct {
		name  string
		debug bool
		input []byte
		level bootapi.LogLevel
		ext   []*bootapi.Extension
		err   string
	}{
		{name: "no options", level: bootapi.LogLevel_LOG_LEVEL_INFO},
		{name: "debug", debug: true, level: bootapi.LogLevel_LOG_LEVEL_DEBUG},
		{name: "runc's options", input: marshal(t, runc), level: bootapi.LogLevel_LOG_LEVEL_INFO, ext: []*bootapi.Extension{{Value: runc}}},
		{name: "options of an unknown type", input: marshal(t, &anypb.Any{TypeUrl: "runsc.Options", Value: []byte{8, 1}}), err: `"runsc.Options" are not supported`},
		{name: "an unknown key", input: marshal(t, unknownKey), err: "Nonesuch"},
		{name: "not a message", input: []byte("unix:///run/c.sock"), err: "neither bootstrap parameters nor runtime options"},
		{name: "the parameters of another container", input: marshal(t, &bootapi.BootstrapParams{InstanceID: "c2", Namespace: "k8s.io"}), err: `"c2" are not supported`},
	} {
		c := startCommand{id: "c1", namespace: "k8s.io", address: "/run/c.sock", debug: tc.debug}
		if c.isBootstrap(tc.input) {
			t.Errorf("%s: taken for the parameters of a newer daemon", tc.name)
		}
		got, err := c.params(tc.input)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: got %v, want one line with %q", tc.name, err, tc.err)
			}
			continue
		}
		want := &bootapi.BootstrapParams{
			InstanceID: "c1", Namespace: "k8s.io", ContainerdGrpcAddress: "/run/c.sock",
			ContainerdTtrpcAddress: "/run/c.sock.ttrpc", LogLevel: tc.level, Extensions: tc.ext,
		}
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: got %v, %v; want %v", tc.name, got, err, want)
		}
		if !c.isBootstrap(marshal(t, want)) {
			t.Errorf("%s: the parameters of a newer daemon are not recognized", tc.name)
		}
	}
}

// embeddedManager stands for containerd's manager: it starts a shim at address.
type embeddedManager struct {
	ctrdshim.Shim
	address   string
	err       error
	params    *bootapi.BootstrapParams
	namespace string
}

func (m *embeddedManager) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	m.params = params
	m.namespace, _ = namespaces.Namespace(ctx)
	if m.err != nil {
		return nil, m.err
	}
	return &bootapi.BootstrapResult{Version: 3, Protocol: "ttrpc", Address: m.address}, nil
}

// withStdio runs fn with the input on standard input and returns what it printed.
func withStdio(t *testing.T, input []byte, fn func()) string {
	t.Helper()
	in, out := os.Stdin, os.Stdout
	defer func() { os.Stdin, os.Stdout = in, out }()
	name := filepath.Join(t.TempDir(), "stdio")
	check(t, os.WriteFile(name, input, 0o600))
	stdin, err := os.Open(name)
	check(t, err)
	defer stdin.Close()
	stdout, err := os.Create(name + ".out")
	check(t, err)
	defer stdout.Close()
	os.Stdin, os.Stdout = stdin, stdout
	fn()
	data, err := os.ReadFile(stdout.Name())
	check(t, err)
	return string(data)
}

func TestOlderDaemonsGetAnAddressAndAnAddressFile(t *testing.T) {
	t.Chdir(t.TempDir())
	c := startCommand{id: "c1", namespace: "k8s.io"}
	address, err := ctrdshim.CreateSocketAddress(namespaces.WithNamespace(t.Context(), c.namespace), "/run/containerd/s", c.address, c.id, false)
	check(t, err)
	embedded := &embeddedManager{address: address}
	// containerd 1.6 has the message of the options in another package than 1.7.
	options := &anypb.Any{TypeUrl: "cri.runtimeoptions.v1.Options", Value: marshal(t, &runtimeoptions.Options{ConfigBody: []byte(`ShimCgroup = "/shims"`)})}
	out := withStdio(t, marshal(t, options), func() {
		answered, err := c.answerOlderDaemon(t.Context(), &shimManager{Shim: embedded})
		if err != nil || !answered {
			t.Fatalf("%v, %v", answered, err)
		}
	})
	if out != embedded.address {
		t.Errorf("standard output: %q, want only the address", out)
	}
	if data, err := os.ReadFile("address"); err != nil || string(data) != embedded.address {
		t.Errorf("address: %q, %v", data, err)
	}
	var got runcoptions.Options
	if found, err := embedded.params.FindExtension(&got); err != nil || !found || got.ShimCgroup != "/shims" || embedded.namespace != "k8s.io" {
		t.Errorf("the embedded manager got namespace %q, options %v, %v, %v", embedded.namespace, &got, found, err)
	}
}

func TestAFailedStartPrintsNoAddress(t *testing.T) {
	t.Chdir(t.TempDir())
	m := &shimManager{Shim: &embeddedManager{err: errors.New("no shim")}}
	out := withStdio(t, nil, func() {
		if _, err := (startCommand{id: "c1", namespace: "k8s.io"}).answerOlderDaemon(t.Context(), m); err == nil {
			t.Error("no error")
		}
	})
	if entries, _ := os.ReadDir("."); out != "" || len(entries) != 0 {
		t.Errorf("left %q and %v", out, entries)
	}
}

// RunShim reads standard input as containerd wrote it, however long it is.
func TestNewerDaemonsAreLeftToTheLibrary(t *testing.T) {
	input := marshal(t, &bootapi.BootstrapParams{InstanceID: "c1", Namespace: "k8s.io", ContainerdBinary: strings.Repeat("x", 1<<20)})
	var got []byte
	out := withStdio(t, input, func() {
		answered, err := startCommand{id: "c1", namespace: "k8s.io"}.answerOlderDaemon(t.Context(), newManager())
		if err != nil || answered {
			t.Fatalf("%v, %v", answered, err)
		}
		defer os.Stdin.Close()
		got, err = io.ReadAll(os.Stdin)
		check(t, err)
	})
	if string(got) != string(input) || out != "" {
		t.Errorf("of %d bytes RunShim reads %d, printed %q", len(input), len(got), out)
	}
}

// FuzzStart holds that any command line and input of a daemon is understood or refused.
func FuzzStart(f *testing.F) {
	options, err := anypb.New(&runtimeoptions.Options{ConfigBody: []byte("SystemdCgroup = true\n")})
	check(f, err)
	f.Add("-namespace default -address /run/c.sock -id c1 -debug start", marshal(f, options))
	f.Add("-id= -namespace n start", marshal(f, &bootapi.BootstrapParams{InstanceID: "c1", Namespace: "n"}))
	f.Add("-namespace n start", []byte("\x0a\xff"))
	f.Fuzz(func(t *testing.T, args string, input []byte) {
		c, ok := parseStart(strings.Fields(args))
		if !ok || c.isBootstrap(input) {
			return
		}
		params, err := c.params(input)
		if err == nil && (params.InstanceID != c.id || params.Namespace != c.namespace || params.Namespace == "") {
			t.Errorf("%v of %+v", params, c)
		}
	})
}
