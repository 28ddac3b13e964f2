package refusals

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
)

func TestMain(m *testing.M) { simhost.Main(m) }

// refusal is a container creation that must fail: what is wrong, who asks, what the error
// says and does not say, and its gRPC code.
type refusal struct {
	name        string
	spoil       func(t *testing.T, h *simhost.Host)
	env         []string
	annotations []string
	hooks       bool // NVIDIA's own OCI hook is in the specification
	words       []string
	never       []string
	code        error // its gRPC code, as errdefs names it
}

func refusals(d *sim.Driver) []refusal {
	node := filepath.Join(d.DevRoot, "dev/nvidia2") // GPU 0 of 3
	zero := []string{"NVIDIA_VISIBLE_DEVICES=0"}
	list := []string{"this host has 0 (" + d.GPUs[0].UUID + ", " + d.GPUs[0].BusID + "), 1 (" + d.GPUs[1].UUID, d.GPUs[2].BusID + ")"}
	config := func(content string) func(*testing.T, *simhost.Host) {
		return func(t *testing.T, h *simhost.Host) {
			simhost.Restore(t, h.Driver.ConfigPath)
			simhost.Append(t, h.Driver.ConfigPath, content)
		}
	}
	kubernetes := []string{"io.kubernetes.cri.container-type=container", "io.kubernetes.cri.sandbox-namespace=default"}
	return []refusal{
		{name: "an unknown index", env: []string{"NVIDIA_VISIBLE_DEVICES=7"}, words: append(list, `unknown GPU "7"`), code: errdefs.ErrInvalidArgument},
		{name: "a MIG device", env: []string{"NVIDIA_VISIBLE_DEVICES=MIG-00000000-0000-0000-0000-000000000000"}, words: []string{"unknown MIG device", "there is no MIG device"}, code: errdefs.ErrInvalidArgument},
		{
			name: "an unknown capability", env: append(zero, "NVIDIA_DRIVER_CAPABILITIES=compute,magic"),
			words: []string{`"magic"`, "supported:", "compat32"}, code: errdefs.ErrInvalidArgument,
		},
		{
			name: "T47 a long and hostile value", env: []string{"NVIDIA_VISIBLE_DEVICES=" + strings.Repeat("x", 5000) + "\x1b[31m\nsecond line"},
			words: []string{"unknown GPU"}, never: []string{"\x1b", strings.Repeat("x", 600)}, code: errdefs.ErrInvalidArgument,
		},
		{
			name: "T66 no driver is loaded", spoil: func(t *testing.T, h *simhost.Host) { simhost.Away(t, filepath.Join(h.Driver.ProcRoot, "driver")) },
			env: zero, words: []string{"no NVIDIA driver is loaded on this host", "driver/nvidia/version"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "the driver is loaded and has no libraries", spoil: func(t *testing.T, h *simhost.Host) {
				simhost.Away(t, filepath.Join(h.Driver.Root, h.Driver.Layout.LibDir()))
			},
			env: zero, words: []string{"NVIDIA driver " + d.Version + " is loaded", "libcuda.so." + d.Version + " was not found", "searched", d.Root, "host.driver-root"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "libraries and kernel module are apart", spoil: func(t *testing.T, h *simhost.Host) {
				if err := h.Driver.LoadModule("580.95.05"); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := h.Driver.LoadModule(h.Driver.Version); err != nil {
						t.Error(err)
					}
				})
			},
			env: zero, words: []string{"libcuda.so." + d.Version, "the loaded kernel module is 580.95.05", "reboot"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "the device node is missing", spoil: func(t *testing.T, _ *simhost.Host) { simhost.Away(t, node) },
			env: zero, words: []string{node + " is missing", "nvidia-shimctl prepare"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "the device node has another major number", spoil: func(t *testing.T, _ *simhost.Host) {
				simhost.Away(t, node)
				if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(d.Majors.UVM, 2))); err != nil {
					t.Fatal(err)
				}
			},
			env: zero, words: []string{fmt.Sprintf("%s is %d:2, but driver \"nvidia\" has %d:2", node, d.Majors.UVM, d.Majors.GPU)}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "an unknown key in the configuration", spoil: config("[policy]\nkubernets = \"enforce\"\n"),
			env: zero, words: []string{d.ConfigPath, `unknown key "policy.kubernets"`}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "a configuration that others can write", spoil: func(t *testing.T, h *simhost.Host) {
				if err := os.Chmod(h.Driver.ConfigPath, 0o646); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = os.Chmod(h.Driver.ConfigPath, 0o644) })
			},
			env: zero, words: []string{d.ConfigPath, "is writable by users other than root (mode 0646)"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "a configuration that is named and not there", spoil: func(t *testing.T, h *simhost.Host) { simhost.Away(t, h.Driver.ConfigPath) },
			env: zero, words: []string{d.ConfigPath, "no such file"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "NVIDIA's OCI hook where hooks are refused", spoil: config("[policy]\nforeign-hooks = \"refuse\"\n"), hooks: true,
			env: zero, words: []string{"/usr/bin/nvidia-container-runtime-hook", "foreign-hooks"}, code: errdefs.ErrPermissionDenied,
		},
		{
			name: "a named GPU in a pod that was given none", annotations: kubernetes, env: zero,
			words: []string{`GPU "0" is not this container's`, "no GPU was allocated"}, never: []string{d.GPUs[0].UUID, d.GPUs[1].UUID}, code: errdefs.ErrPermissionDenied,
		},
		{
			name: "a GPU that does not exist, in a pod, in the same words", annotations: kubernetes, env: []string{"NVIDIA_VISIBLE_DEVICES=9"},
			words: []string{`GPU "9" is not this container's`, "no GPU was allocated"}, never: []string{d.GPUs[0].UUID, "unknown"}, code: errdefs.ErrPermissionDenied,
		},
	}
}

// Every refusal is one line that says what was asked, what this host has and what
// to change, carries its gRPC code, and leaves nothing behind.
func TestARefusalSaysWhyAndLeavesNothingBehind(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}})
	// The views and the state directory are made by the first GPU container and
	// stay; this one lives all the time and must not suffer.
	neighbour := h.Start(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}})
	task, ctx := api.Task(t, h.Env, neighbour)
	pid := h.ShimPIDs(neighbour)
	for _, tc := range refusals(h.Driver) {
		t.Run(tc.name, func(t *testing.T) {
			if tc.spoil != nil {
				tc.spoil(t, h)
			}
			spec := h.Spec(t, testenv.RunOptions{Annotations: tc.annotations, Args: []string{"/bin/true"}})
			env := []any{"PATH=/bin"}
			for _, v := range tc.env {
				env = append(env, v)
			}
			spec["process"].(map[string]any)["env"] = env
			if tc.hooks {
				spec["hooks"] = map[string]any{"prestart": []any{map[string]any{"path": "/usr/bin/nvidia-container-runtime-hook", "args": []any{"nvidia-container-runtime-hook", "prestart"}}}}
			}
			dirs := []string{h.State, h.Driver.StateDir}
			before := h.Snapshot(t, dirs...)
			check := func(message string) {
				t.Helper()
				simhost.Want(t, message, tc.words...)
				for _, w := range tc.never {
					if strings.Contains(message, w) {
						t.Errorf("the error says %q:\n%q", w, message)
					}
				}
				if strings.Contains(strings.TrimSpace(message), "\n") {
					t.Errorf("the error has several lines:\n%s", message)
				}
			}

			// Through containerd, as its user sees it.
			r := h.RunSpec(t, spec)
			if r.ExitCode == 0 {
				t.Fatal("the container was created")
			}
			_, message, ok := strings.Cut(r.Error, "ctr: failed to create shim task: nvidia: ")
			if !ok {
				t.Fatalf("got %s", r.Error)
			}
			check(message)
			before.AssertUnchanged(t)

			// To the shim itself, which serves other containers at the same time.
			bundle, data := newBundle(t, spec)
			_, err := task.Create(ctx, &taskapi.CreateTaskRequest{ID: "refused", Bundle: bundle})
			if err = errgrpc.ToNative(err); !errors.Is(err, tc.code) {
				t.Errorf("got %v, want the code of %q", err, tc.code)
			}
			if err != nil {
				check(err.Error())
			}
			if names := simhost.Names(t, bundle); len(names) != 1 {
				t.Errorf("the bundle has %q", names)
			}
			if now, err := os.ReadFile(filepath.Join(bundle, "config.json")); err != nil || string(now) != data {
				t.Errorf("config.json was changed: %v", err)
			}
			if _, err := task.State(ctx, &taskapi.StateRequest{ID: "refused"}); !errdefs.IsNotFound(errgrpc.ToNative(err)) {
				t.Errorf("the shim knows a container that it refused: %v", err)
			}
			before.AssertUnchanged(t)
		})
	}
	if now := h.ShimPIDs(neighbour); fmt.Sprint(now) != fmt.Sprint(pid) {
		t.Errorf("the shim of a living container was %v and is %v", pid, now)
	}
	if r := h.Exec(t, neighbour, "nvidia-smi", "-L"); !strings.Contains(r.Output, h.Driver.GPUs[1].UUID) {
		t.Errorf("the container beside it has %q %s", r.Output, r.Error)
	}
	// And the host works again once the problem is fixed.
	if r := h.Run(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Args: []string{"nvidia-smi", "-L"}}); !strings.Contains(r.Output, h.Driver.GPUs[0].UUID) {
		t.Errorf("a container after all that: exit status %d: %s%s", r.ExitCode, r.Output, r.Error)
	}
}

// newBundle makes a bundle with this configuration, which it also returns as text.
func newBundle(t *testing.T, spec map[string]any) (dir, config string) {
	t.Helper()
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	simhost.WriteFile(t, filepath.Join(dir, "config.json"), string(data))
	return dir, string(data)
}

// Runtime options of a type that cannot be translated are refused by name and crash nothing:
// the embedded service would end the process, and with it a whole pod.
func TestRuntimeOptionsOfAnyTypeNeverCrashTheShim(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}})
	neighbour := h.Start(t, testenv.RunOptions{})
	task, ctx := api.Task(t, h.Env, neighbour)
	pids := fmt.Sprint(h.ShimPIDs(neighbour))
	foreign, err := anypb.New(&taskapi.StateRequest{ID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	runc, err := anypb.New(&options.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		any  *anypb.Any
		word string
	}{
		{"a message of another kind", foreign, "containerd.task.v3.StateRequest"},
		{"an unknown type", &anypb.Any{TypeUrl: "example.com/unknown.Options", Value: []byte{1, 2, 3}}, "unknown.Options"},
		{"a value without a type", &anypb.Any{Value: []byte{1}}, "not supported"},
		{"JSON where protobuf belongs", &anypb.Any{TypeUrl: runc.TypeUrl, Value: []byte(`{"BinaryName":"runc"}`)}, "containerd.runc.v1.Options"},
		{"a broken table", &anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: []byte{0x0a, 0xff}}, "runtimeoptions.v1.Options"},
		{"a table with an unknown key", api.RuntimeOptions(t, "Nonsense = 1\n"), `unknown key "Nonsense"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bundle, _ := newBundle(t, h.Spec(t, testenv.RunOptions{Args: []string{"/bin/true"}}))
			_, err := task.Create(ctx, &taskapi.CreateTaskRequest{ID: "refused", Bundle: bundle, Options: tc.any})
			if !errdefs.IsInvalidArgument(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), tc.word) {
				t.Errorf("got %v, want InvalidArgument with %s", err, tc.word)
			}
			if now := fmt.Sprint(h.ShimPIDs(neighbour)); now != pids {
				t.Fatalf("the shim was %s and is %s", pids, now)
			}
			if _, err := task.State(ctx, &taskapi.StateRequest{ID: neighbour}); err != nil {
				t.Errorf("the shim serves its container no more: %v", err)
			}
		})
	}
}
