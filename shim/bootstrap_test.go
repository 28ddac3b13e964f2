package shim

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The command lines are those of containerd 1.6, 1.7, 2.2 and 2.4, whose flags come
// in different orders.
func TestOnlyAStartByContainerdIsOursToAnswer(t *testing.T) {
	for _, tc := range []struct {
		name, args string
		want       invocation
		action     string
	}{
		{"1.7", "-namespace k8s.io -address /run/c.sock -publish-binary /usr/bin/containerd -id c1 start",
			invocation{id: "c1", namespace: "k8s.io", address: "/run/c.sock"}, "start"},
		{"1.7 with debug", "-namespace k8s.io -address /run/c.sock -publish-binary /usr/bin/containerd -id c1 -debug start",
			invocation{id: "c1", namespace: "k8s.io", address: "/run/c.sock", debug: true}, "start"},
		{"2.4", "-namespace default -address /run/c.sock -publish-binary /usr/bin/containerd -id c1 start",
			invocation{id: "c1", namespace: "default", address: "/run/c.sock"}, "start"},
		{"delete", "-namespace default -address /run/c.sock -publish-binary /usr/bin/containerd -id c1 -bundle /b delete", invocation{}, "delete"},
		{"the server", "-namespace default -id c1 -address /run/c.sock", invocation{}, serve},
		{"-info", "-info", invocation{}, other},
		{"-v", "-v", invocation{}, other},
		{"-info with start", "-namespace default -info start", invocation{}, other},
		{"no namespace", "-id c1 start", invocation{}, other},
		{"a flag of nobody", "-namespace default -id c1 -nonesuch start", invocation{}, other},
		{"nothing", "", invocation{}, other},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, action := parse(strings.Fields(tc.args))
			if action != tc.action || action == "start" && got != tc.want {
				t.Errorf("got %+v, %q; want %+v, %q", got, action, tc.want, tc.action)
			}
		})
	}
}

func TestParametersAreMadeForDaemonsBefore2Point3(t *testing.T) {
	i := invocation{id: "c1", namespace: "k8s.io", address: "/run/c.sock"}
	debug := i
	debug.debug = true
	runc := &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: marshal(t, &options.Options{ShimCgroup: "/shims"})}
	plain := func(level bootapi.LogLevel, extensions ...*anypb.Any) *bootapi.BootstrapParams {
		p := &bootapi.BootstrapParams{
			InstanceID: "c1", Namespace: "k8s.io", ContainerdGrpcAddress: "/run/c.sock",
			ContainerdTtrpcAddress: "/run/c.sock.ttrpc", LogLevel: level,
		}
		for _, any := range extensions {
			p.Extensions = append(p.Extensions, &bootapi.Extension{Value: any})
		}
		return p
	}
	info := bootapi.LogLevel_LOG_LEVEL_INFO
	for _, tc := range []struct {
		name  string
		i     invocation
		input []byte
		want  *bootapi.BootstrapParams // nil: left to RunShim
	}{
		{"no options", i, nil, plain(info)},
		{"debug", debug, nil, plain(bootapi.LogLevel_LOG_LEVEL_DEBUG)},
		{"runc's options", i, marshal(t, runc), plain(info, runc)},
		{"2.3's own parameters", i, marshal(t, plain(info, runc)), nil},
		{"an empty message of options", i, marshal(t, &anypb.Any{}), plain(info)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, legacy, err := tc.i.legacyParams(tc.input, "/run/c.sock.ttrpc")
			if err != nil {
				t.Fatal(err)
			}
			if legacy != (tc.want != nil) {
				t.Fatalf("legacy: %v", legacy)
			}
			if tc.want != nil && !proto.Equal(got, tc.want) {
				t.Errorf("got  %v\nwant %v", got, tc.want)
			}
		})
	}
}

// containerd 1.6 has the options' message in another package than 1.7.
func TestOptionsOfOldDaemonsAreTranslatedAtStart(t *testing.T) {
	for _, url := range []string{"runtimeoptions.v1.Options", "cri.runtimeoptions.v1.Options", "types.googleapis.com/runtimeoptions.v1.Options"} {
		t.Run(url, func(t *testing.T) {
			input := marshal(t, &anypb.Any{TypeUrl: url, Value: marshal(t, &runtimeoptions.Options{ConfigBody: []byte(`ShimCgroup = "/shims"`)})})
			params, legacy, err := invocation{id: "c1", namespace: "k8s.io"}.legacyParams(input, "")
			if err != nil || !legacy {
				t.Fatalf("%v, %v", legacy, err)
			}
			t.Chdir(t.TempDir())
			fake := &fakeShim{}
			if _, err := (&shimManager{Shim: fake}).Start(context.Background(), params); err != nil {
				t.Fatal(err)
			}
			var got options.Options
			if found, err := fake.params.FindExtension(&got); err != nil || !found || got.ShimCgroup != "/shims" {
				t.Errorf("the embedded manager gets %v, %v, %v", &got, found, err)
			}
		})
	}
}

func TestAStartThatNoDaemonWouldMakeIsRefused(t *testing.T) {
	i := invocation{id: "c1", namespace: "k8s.io"}
	for _, tc := range []struct {
		name  string
		input []byte
		want  string
	}{
		{"options of a type that we do not know", marshal(t, &anypb.Any{TypeUrl: "runsc.Options", Value: []byte{8, 1}}), `"runsc.Options" are not supported`},
		{"an unknown key", marshal(t, &anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: marshal(t, &runtimeoptions.Options{ConfigBody: []byte("Nonesuch = 1")})}), "Nonesuch"},
		{"no message at all", []byte("unix:///run/c.sock"), "neither bootstrap parameters nor runtime options"},
		{"the parameters of another container", marshal(t, &bootapi.BootstrapParams{InstanceID: "c2", Namespace: "k8s.io"}), `"c2" are not supported`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := i.legacyParams(tc.input, "")
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, tc.want)
			}
		})
	}
}

// fakeShim is a manager whose shim runs at address.
type fakeShim struct {
	address string
	params  *bootapi.BootstrapParams
	opts    any
	ns      string
}

func (f *fakeShim) Name() string { return "fake" }

func (f *fakeShim) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	f.params, f.opts = params, ctx.Value(ctrdshim.OptsKey{})
	f.ns, _ = namespaces.Namespace(ctx)
	if f.address == "" && params.GetInstanceID() == "broken" {
		return nil, fmt.Errorf("no shim today")
	}
	return &bootapi.BootstrapResult{Version: 3, Protocol: "ttrpc", Address: f.address}, nil
}

func (f *fakeShim) Stop(context.Context, string) (ctrdshim.StopStatus, error) {
	return ctrdshim.StopStatus{}, nil
}

func (f *fakeShim) Info(context.Context, io.Reader) (*types.RuntimeInfo, error) { return nil, nil }

// withStdio runs fn in a new bundle with the input on standard input, and returns
// what it printed.
func withStdio(t testing.TB, input []byte, fn func()) string {
	t.Helper()
	in, out := os.Stdin, os.Stdout
	defer func() { os.Stdin, os.Stdout = in, out }()
	for _, f := range []struct {
		file **os.File
		data []byte
	}{{&os.Stdin, input}, {&os.Stdout, nil}} {
		name := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(name, f.data, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		*f.file = file
	}
	stdout := os.Stdout
	fn()
	data, err := os.ReadFile(stdout.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestAnOldDaemonGetsThePlainAddressAndTheAddressFile(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("TTRPC_ADDRESS", "/run/c.sock.ttrpc")
	fake := &fakeShim{address: "unix:///run/containerd/s/abc"}
	out := withStdio(t, nil, func() {
		done, err := invocation{id: "c1", namespace: "k8s.io", debug: true}.start(context.Background(), &shimManager{Shim: fake})
		if err != nil || !done {
			t.Fatalf("%v, %v", done, err)
		}
	})
	if out != fake.address {
		t.Errorf("standard output: %q, want the address and nothing else", out)
	}
	if data, err := os.ReadFile("address"); err != nil || string(data) != fake.address {
		t.Errorf("address: %q, %v", data, err)
	}
	if entries, _ := os.ReadDir("."); len(entries) != 1 {
		t.Errorf("the bundle holds %v", entries)
	}
	if fake.ns != "k8s.io" || fake.opts != (ctrdshim.Opts{Debug: true}) || fake.params.GetContainerdTtrpcAddress() != "/run/c.sock.ttrpc" {
		t.Errorf("the manager got namespace %q, options %v, %v", fake.ns, fake.opts, fake.params)
	}
}

func TestAFailedStartPrintsNoAddress(t *testing.T) {
	t.Chdir(t.TempDir())
	out := withStdio(t, nil, func() {
		if _, err := (invocation{id: "broken", namespace: "k8s.io"}).start(context.Background(), &shimManager{Shim: &fakeShim{}}); err == nil {
			t.Error("no error")
		}
	})
	if entries, _ := os.ReadDir("."); out != "" || len(entries) != 0 {
		t.Errorf("left %q and %v", out, entries)
	}
}

// RunShim finds standard input as containerd wrote it, also where it is longer than
// a pipe holds.
func TestStandardInputIsPutBackForANewDaemon(t *testing.T) {
	for _, size := range []int{0, 100, 1 << 20} {
		input := marshal(t, &bootapi.BootstrapParams{InstanceID: "c1", Namespace: "k8s.io", ContainerdBinary: strings.Repeat("x", size)})
		var got []byte
		out := withStdio(t, input, func() {
			done, err := invocation{id: "c1", namespace: "k8s.io"}.start(context.Background(), nil)
			if err != nil || done {
				t.Fatalf("%v, %v", done, err)
			}
			defer os.Stdin.Close()
			got, err = io.ReadAll(os.Stdin)
			if err != nil {
				t.Fatal(err)
			}
		})
		if string(got) != string(input) || out != "" {
			t.Errorf("%d bytes: RunShim reads %d bytes, printed %q", len(input), len(got), out)
		}
	}
}

func TestTheVersionOfARunningPodIsKept(t *testing.T) {
	const address, other = "unix:///run/containerd/s/abc", "unix:///run/containerd/s/def"
	config := func(annotations string) string {
		return `{"ociVersion":"1.2.0","process":{"env":["A=\"io.kubernetes.cri.sandbox-id\":\"x\""]},"annotations":{` + annotations + `}}`
	}
	pod, group := `"io.kubernetes.cri.sandbox-id": "pod"`, `"a":"b","io.containerd.runc.v2.group":"g","c":"d"`
	for _, tc := range []struct {
		name, config string
		bundles      map[string]string // bundle/file to content
		want         int32
	}{
		{"a pod that containerd 1.7 started", config(pod), map[string]string{"pod/address": address}, 2},
		{"a pod that containerd 2.2 started", config(pod), map[string]string{"pod/address": address, "pod/bootstrap.json": `{"version":2,"address":"` + address + `","protocol":"ttrpc"}`}, 2},
		{"a pod that this one started", config(pod), map[string]string{"pod/bootstrap.json": `{"version":3,"address":"` + address + `","protocol":"ttrpc"}`}, 3},
		{"a group under another name", config(group), map[string]string{"first/address": address, "a/bootstrap.json": "{", "b/config.json": "{}"}, 2},
		{"the group's annotation is before the pod's", config(pod + "," + group), map[string]string{"first/address": address}, 2},
		{"a pod whose shim is another", config(pod), map[string]string{"pod/address": other}, 0},
		{"a bundle that was here before", config(pod), map[string]string{"pod/address": address, "pod/bootstrap.json": `{"version":3,"address":"` + other + `"}`}, 0},
		{"the first container of a pod", config(`"io.kubernetes.cri.sandbox-id":"c1"`), map[string]string{"x/address": address}, 0},
		{"no group", config(``), map[string]string{"x/address": address}, 0},
		{"a group that leaves the directory", config(`"io.kubernetes.cri.sandbox-id":"../../secret"`), nil, 0},
		{"no configuration", "", map[string]string{"x/address": address}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			files := map[string]string{"c1/config.json": tc.config}
			for name, content := range tc.bundles {
				files[name] = content
			}
			for name, content := range files {
				if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if content == "" {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := keptVersion(filepath.Join(dir, "c1"), "c1", address); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

// Docker's daemon.json and nerdctl send the type and at most a path; whether systemd
// manages the cgroup is in the path that they make.
func TestDockersOptionsAndCgroupPathMeanSystemd(t *testing.T) {
	for config, want := range map[string]bool{
		`{"linux":{"cgroupsPath":"system.slice:docker:abc"}}`: true,
		`{"linux":{"cgroupsPath":"user.slice:nerdctl:abc"}}`:  true,
		`{"linux":{"cgroupsPath":"/docker/abc"}}`:             false,
	} {
		for name, any := range map[string]*anypb.Any{
			"nothing":                  nil,
			"a type and no more":       {TypeUrl: "runtimeoptions.v1.Options", Value: marshal(t, &runtimeoptions.Options{TypeUrl: "io.containerd.nvidia.v2.Options"})},
			"a message without fields": {TypeUrl: "runtimeoptions.v1.Options"},
		} {
			r := &taskapi.CreateTaskRequest{ID: "c1", Options: any}
			opts, err := Translate(any)
			if err != nil {
				t.Fatal(err)
			}
			if err := setOptions(t.Context(), r, opts, []byte(config)); err != nil {
				t.Fatal(err)
			}
			var got options.Options
			if err := proto.Unmarshal(r.Options.GetValue(), &got); err != nil || r.Options.GetTypeUrl() != "containerd.runc.v1.Options" {
				t.Fatalf("%v, %v", r.Options, err)
			}
			if got.SystemdCgroup != want {
				t.Errorf("%s with %s: SystemdCgroup %v, want %v", config, name, got.SystemdCgroup, want)
			}
		}
	}
}

// What a daemon since 2.3 pays for those before.
func BenchmarkStartOfANewDaemon(b *testing.B) {
	args := strings.Fields("-namespace k8s.io -address /run/c.sock -publish-binary /usr/bin/containerd -id c1 start")
	params := &bootapi.BootstrapParams{InstanceID: "c1", Namespace: "k8s.io", ContainerdGrpcAddress: "/run/c.sock"}
	if err := params.AddExtension(&options.Options{SystemdCgroup: true}); err != nil {
		b.Fatal(err)
	}
	input := marshal(b, params)
	// Bundles are on a tmpfs, /run.
	bundles, err := os.MkdirTemp("/dev/shm", "bundles")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(bundles)
	dir := filepath.Join(bundles, "c1")
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	config := `{"annotations":{"io.kubernetes.cri.sandbox-id":"c1"},"x":"` + strings.Repeat("x", 20<<10) + `"}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		b.Fatal(err)
	}
	in := os.Stdin
	defer func() { os.Stdin = in }()
	for b.Loop() {
		i, action := parse(args)
		if action != "start" {
			b.Fatal("not a start")
		}
		if _, legacy, err := i.legacyParams(input, ""); legacy || err != nil {
			b.Fatal(legacy, err)
		}
		if err := putBack(input); err != nil {
			b.Fatal(err)
		}
		os.Stdin.Close()
		if v := keptVersion(dir, "c1", "unix:///run/containerd/s/abc"); v != 0 {
			b.Fatal(v)
		}
		if err := writeAddress(dir, "unix:///run/containerd/s/abc"); err != nil {
			b.Fatal(err)
		}
	}
}
