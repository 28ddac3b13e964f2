package integration

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
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// devRefusal is a create that must fail: what is wrong, who asks, what the error
// says and does not say, and its gRPC code.
type devRefusal struct {
	name        string
	spoil       func(t *testing.T, h *devHost)
	env         []string
	annotations []string
	hooks       bool // NVIDIA's own OCI hook is in the specification
	words       []string
	never       []string
	code        error // its gRPC code, as errdefs names it
}

func devRefusals(d *sim.Driver) []devRefusal {
	node := filepath.Join(d.DevRoot, "dev/nvidia2") // GPU 0 of 3
	zero := []string{"NVIDIA_VISIBLE_DEVICES=0"}
	list := []string{"this host has 0 (" + d.GPUs[0].UUID + ", " + d.GPUs[0].BusID + "), 1 (" + d.GPUs[1].UUID, d.GPUs[2].BusID + ")"}
	config := func(content string) func(*testing.T, *devHost) {
		return func(t *testing.T, h *devHost) {
			devRestore(t, h.Driver.ConfigPath)
			f, err := os.OpenFile(h.Driver.ConfigPath, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString(content); err != nil {
				t.Fatal(err)
			}
		}
	}
	kubernetes := []string{"io.kubernetes.cri.container-type=container", "io.kubernetes.cri.sandbox-namespace=default"}
	return []devRefusal{
		{name: "an unknown index", env: []string{"NVIDIA_VISIBLE_DEVICES=7"}, words: append(list, `unknown GPU "7"`), code: errdefs.ErrInvalidArgument},
		{name: "one unknown index beside a known one", env: []string{"NVIDIA_VISIBLE_DEVICES=0,3"}, words: append(list, `unknown GPU "3"`), code: errdefs.ErrInvalidArgument},
		{name: "a negative index", env: []string{"NVIDIA_VISIBLE_DEVICES=-1"}, words: append(list, `unknown GPU "-1"`), code: errdefs.ErrInvalidArgument},
		{name: "an index beyond every number", env: []string{"NVIDIA_VISIBLE_DEVICES=99999999999999999999"}, words: append(list, "unknown GPU"), code: errdefs.ErrInvalidArgument},
		{name: "a unicode digit", env: []string{"NVIDIA_VISIBLE_DEVICES=０"}, words: append(list, "unknown GPU"), code: errdefs.ErrInvalidArgument},
		{
			name: "an unknown UUID", env: []string{"NVIDIA_VISIBLE_DEVICES=GPU-00000000-0000-0000-0000-000000000000"},
			words: append(list, `unknown GPU "GPU-00000000-0000-0000-0000-000000000000"`), code: errdefs.ErrInvalidArgument,
		},
		{name: "the beginning of every UUID", env: []string{"NVIDIA_VISIBLE_DEVICES=GPU-"}, words: append(list, "the beginning of every UUID"), code: errdefs.ErrInvalidArgument},
		{name: "an unknown bus id", env: []string{"NVIDIA_VISIBLE_DEVICES=0000:01:00.0"}, words: append(list, "unknown GPU"), code: errdefs.ErrInvalidArgument},
		{name: "a word in the wrong case", env: []string{"NVIDIA_VISIBLE_DEVICES=ALL"}, words: append(list, `unknown GPU "ALL"`), code: errdefs.ErrInvalidArgument},
		{name: "a MIG device", env: []string{"NVIDIA_VISIBLE_DEVICES=MIG-00000000-0000-0000-0000-000000000000"}, words: []string{"unknown MIG device", "there is no MIG device"}, code: errdefs.ErrInvalidArgument},
		{name: "a MIG device by position", env: []string{"NVIDIA_VISIBLE_DEVICES=0:0"}, words: []string{"unknown MIG device", "there is no MIG device"}, code: errdefs.ErrInvalidArgument},
		{
			name: "an unknown capability", env: append(zero, "NVIDIA_DRIVER_CAPABILITIES=compute,magic"),
			words: []string{`"magic"`, "supported:", "compat32"}, code: errdefs.ErrInvalidArgument,
		},
		{
			name: "a capability outside the supported set", spoil: config("[container]\nsupported-capabilities = [\"utility\"]\n"),
			env: append(zero, "NVIDIA_DRIVER_CAPABILITIES=video"), words: []string{`"video"`, "supported: utility", "supported-capabilities"}, code: errdefs.ErrInvalidArgument,
		},
		{
			name: "a long and hostile value", env: []string{"NVIDIA_VISIBLE_DEVICES=" + strings.Repeat("x", 5000) + "\x1b[31m\nsecond line"},
			words: []string{"unknown GPU"}, never: []string{"\x1b", strings.Repeat("x", 600)}, code: errdefs.ErrInvalidArgument,
		},
		{
			name: "no driver is loaded", spoil: func(t *testing.T, h *devHost) { devAway(t, filepath.Join(h.Driver.ProcRoot, "driver")) },
			env: zero, words: []string{"no NVIDIA driver is loaded on this host", "driver/nvidia/version"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "the driver is loaded and has no libraries", spoil: func(t *testing.T, h *devHost) {
				devAway(t, filepath.Join(h.Driver.Root, h.Driver.Layout.LibDir()))
			},
			env: zero, words: []string{"NVIDIA driver " + d.Version + " is loaded", "libcuda.so." + d.Version + " was not found", "searched", d.Root, "host.driver-root"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "libraries and kernel module are apart", spoil: func(t *testing.T, h *devHost) {
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
			name: "the device node is missing", spoil: func(t *testing.T, _ *devHost) { devAway(t, node) },
			env: zero, words: []string{node + " is missing", "nvidia-shimctl prepare"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "the device node is a regular file", spoil: func(t *testing.T, _ *devHost) {
				devAway(t, node)
				devWriteFile(t, node, "")
			},
			env: zero, words: []string{node + " is a regular file, not a character device"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "the device node is a link to another GPU's", spoil: func(t *testing.T, _ *devHost) {
				devAway(t, node)
				if err := os.Symlink("nvidia0", node); err != nil {
					t.Fatal(err)
				}
			},
			env: zero, words: []string{node + " is a symbolic link"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "the device node has another major number", spoil: func(t *testing.T, h *devHost) {
				devAway(t, node)
				if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(h.Driver.Majors.UVM, 2))); err != nil {
					t.Fatal(err)
				}
			},
			env: zero, words: []string{fmt.Sprintf("%s is %d:2, but driver \"nvidia\" has %d:2", node, d.Majors.UVM, d.Majors.GPU)}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "the device node has another minor number", spoil: func(t *testing.T, h *devHost) {
				devAway(t, node)
				if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(h.Driver.Majors.GPU, 1))); err != nil {
					t.Fatal(err)
				}
			},
			env: zero, words: []string{fmt.Sprintf("%s is %d:1", node, d.Majors.GPU)}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "an unknown key in the configuration", spoil: config("[policy]\nkubernets = \"enforce\"\n"),
			env: zero, words: []string{d.ConfigPath, `unknown key "policy.kubernets"`}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "a bad value in the configuration", spoil: config("[log]\nlevel = \"loud\"\n"),
			env: zero, words: []string{d.ConfigPath, `"log.level"`, `"loud"`, "debug"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "a configuration that others can write", spoil: func(t *testing.T, h *devHost) {
				if err := os.Chmod(h.Driver.ConfigPath, 0o646); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = os.Chmod(h.Driver.ConfigPath, 0o644) })
			},
			env: zero, words: []string{d.ConfigPath, "can be written by others than root (mode 0646)"}, code: errdefs.ErrFailedPrecondition,
		},
		{
			name: "a configuration that is named and not there", spoil: func(t *testing.T, h *devHost) { devAway(t, h.Driver.ConfigPath) },
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
		{
			name: "a capability outside the set, in a pod", annotations: kubernetes, env: append(zero, "NVIDIA_DRIVER_CAPABILITIES=magic"),
			words: []string{`"magic"`}, code: errdefs.ErrInvalidArgument,
		},
	}
}

// Every refusal is one line that says what was asked, what this host has and what
// to change, carries its gRPC code, and leaves nothing behind.
func TestARefusalSaysWhyAndLeavesNothingBehind(t *testing.T) {
	h := newDevHost(t, hostOptions{Options: sim.Options{GPUs: 3}})
	devCheckMinors(t, h.Driver)
	// The views and the state directory are made by the first GPU container and
	// stay; this one lives all the time and must not suffer.
	neighbour := h.devSleep(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}})
	task, ctx := h.devTask(t, neighbour)
	pid := h.ShimPIDs(neighbour)
	for _, tc := range devRefusals(h.Driver) {
		t.Run(tc.name, func(t *testing.T) {
			if tc.spoil != nil {
				tc.spoil(t, h)
			}
			spec := h.devSpec(t, testenv.RunOptions{Annotations: tc.annotations, Args: []string{"/bin/true"}})
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
				for _, w := range tc.words {
					if !strings.Contains(message, w) {
						t.Errorf("the error does not say %s:\n%s", w, message)
					}
				}
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
			_, err := h.devRunSpec(t, spec)
			if err == nil {
				t.Fatal("the container was created")
			}
			_, message, ok := strings.Cut(err.Error(), "ctr: failed to create shim task: nvidia: ")
			if !ok {
				t.Fatalf("got %v", err)
			}
			check(message)
			h.AssertUnchanged(t, before)

			// To the shim itself, which serves other containers at the same time.
			bundle := filepath.Join(h.Dir, "bundle")
			if err := os.Mkdir(bundle, 0o700); err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(bundle)
			data, err := json.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			devWriteFile(t, filepath.Join(bundle, "config.json"), string(data))
			_, err = task.Create(ctx, &taskapi.CreateTaskRequest{ID: "refused", Bundle: bundle})
			if err = errgrpc.ToNative(err); !errors.Is(err, tc.code) {
				t.Errorf("got %v, want the code of %q", err, tc.code)
			}
			if err != nil {
				check(err.Error())
			}
			if names := devNames(t, bundle); len(names) != 1 {
				t.Errorf("the bundle has %q", names)
			}
			if now, err := os.ReadFile(filepath.Join(bundle, "config.json")); err != nil || string(now) != string(data) {
				t.Errorf("config.json was changed: %v", err)
			}
			if _, err := task.State(ctx, &taskapi.StateRequest{ID: "refused"}); !errdefs.IsNotFound(errgrpc.ToNative(err)) {
				t.Errorf("the shim knows a container that it refused: %v", err)
			}
			h.AssertUnchanged(t, before)
		})
	}
	if now := h.ShimPIDs(neighbour); fmt.Sprint(now) != fmt.Sprint(pid) {
		t.Errorf("the shim of a living container was %v and is %v", pid, now)
	}
	if r := h.Exec(t, neighbour, "nvidia-smi", "-L"); !strings.Contains(r.Stdout, h.Driver.GPUs[1].UUID) {
		t.Errorf("the container beside it has %q %s", r.Stdout, r.Stderr)
	}
	// And the host works again once it is put right.
	if r := h.Run(t, testenv.RunOptions{Image: h.Image, Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Args: []string{"nvidia-smi", "-L"}}); !strings.Contains(r.Stdout, h.Driver.GPUs[0].UUID) {
		t.Errorf("a container after all that: exit status %d: %s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
}

// Options of a kind that nobody translates are refused by name and crash nothing:
// the embedded service would end the process, and with it a whole pod.
func TestRuntimeOptionsOfAnyTypeNeverCrashTheShim(t *testing.T) {
	h := newDevHost(t, hostOptions{Options: sim.Options{GPUs: 3}})
	neighbour := h.devSleep(t, testenv.RunOptions{})
	task, ctx := h.devTask(t, neighbour)
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
		{"a type that nobody knows", &anypb.Any{TypeUrl: "example.com/unknown.Options", Value: []byte{1, 2, 3}}, "unknown.Options"},
		{"a value without a type", &anypb.Any{Value: []byte{1}}, "not supported"},
		{"JSON where protobuf belongs", &anypb.Any{TypeUrl: runc.TypeUrl, Value: []byte(`{"BinaryName":"runc"}`)}, "containerd.runc.v1.Options"},
		{"a broken table", &anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: []byte{0x0a, 0xff}}, "runtimeoptions.v1.Options"},
		{"a table with an unknown key", devTable(t, "Nonsense = 1\n"), `unknown key "Nonsense"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := h.devSpec(t, testenv.RunOptions{Args: []string{"/bin/true"}})
			data, err := json.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			bundle := filepath.Join(h.Dir, "bundle")
			if err := os.Mkdir(bundle, 0o700); err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(bundle)
			devWriteFile(t, filepath.Join(bundle, "config.json"), string(data))
			_, err = task.Create(ctx, &taskapi.CreateTaskRequest{ID: "refused", Bundle: bundle, Options: tc.any})
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

// In Kubernetes the environment grants nothing: what the specification's devices
// say, put there by the kubelet's device plugin, is the grant (T39, T40, T45).
func TestInAPodTheEnvironmentOnlySelectsAmongAllocatedGPUs(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newDevHost(t, hostOptions{Options: sim.Options{GPUs: 3}, testenv: testenv.Options{Cgroup: version}})
		minors := devCheckMinors(t, h.Driver)
		probe := devProbeScript(devNodes(h.Driver, minors))
		pod := []string{"io.kubernetes.cri.container-type=container", "io.kubernetes.cri.sandbox-namespace=default"}
		allocated := func(gpu int) []string {
			return []string{"--device", fmt.Sprintf("%s/dev/nvidia%d", h.Driver.DevRoot, minors[gpu])}
		}
		run := func(t *testing.T, annotations, extra []string, visible string) testenv.Result {
			t.Helper()
			return h.Run(t, testenv.RunOptions{
				Image: h.Image, Annotations: annotations, Extra: extra, Env: []string{"NVIDIA_VISIBLE_DEVICES=" + visible}, Args: probe,
			})
		}
		has := func(t *testing.T, r testenv.Result, gpus ...int) {
			t.Helper()
			if r.ExitCode != 0 {
				t.Fatalf("exit status %d: %s", r.ExitCode, r.Stderr)
			}
			got := devParse(r.Stdout)
			// The test's allocated node is in /dev under the name that it has on the
			// host, which `find` lists as well.
			var dev []string
			for _, name := range got.dev {
				if !strings.Contains(name, h.Driver.DevRoot[1:]) {
					dev = append(dev, name)
				}
			}
			got.dev = dev
			devCompare(t, got, devExpect(h.Driver, minors, gpus))
		}
		for _, visible := range []string{"all", "none"} {
			t.Run(visible+" without an allocation starts the container without the driver", func(t *testing.T) {
				r := run(t, pod, nil, visible)
				if r.ExitCode != 0 {
					t.Fatalf("exit status %d: %s", r.ExitCode, r.Stderr)
				}
				got := devParse(r.Stdout)
				if len(got.dev) != 0 || strings.Contains(got.cudaText, "libcuda /") || strings.Contains(strings.Join(got.mknod, " "), "ENXIO") {
					t.Errorf("the container has something of the driver: %+v", got)
				}
				if lines := h.devOurLines(r.ID, "warning"); len(lines) != 1 || !strings.Contains(lines[0], "no GPU was allocated") {
					t.Errorf("warnings: %q", lines)
				}
				if lines := h.devOurLines(r.ID, "info"); len(lines) != 0 {
					t.Errorf("info lines about a container without a GPU: %q", lines)
				}
			})
		}
		t.Run("all is what was allocated", func(t *testing.T) { has(t, run(t, pod, allocated(1), "all"), 1) })
		t.Run("the allocated GPU by its index", func(t *testing.T) { has(t, run(t, pod, allocated(1), "1"), 1) })
		t.Run("the allocated GPU by its UUID", func(t *testing.T) { has(t, run(t, pod, allocated(2), h.Driver.GPUs[2].UUID), 2) })
		t.Run("one of two allocated GPUs", func(t *testing.T) {
			r := run(t, pod, append(allocated(0), allocated(2)...), "2")
			if r.ExitCode != 0 {
				t.Fatalf("exit status %d: %s", r.ExitCode, r.Stderr)
			}
			if got := devParse(r.Stdout); len(got.smi) != 1 || got.smi[0] != h.Driver.GPUs[2].UUID {
				t.Errorf("nvidia-smi: %q", got.smi)
			}
		})
		for _, visible := range []string{"0", "0,1", h.Driver.GPUs[0].UUID, h.Driver.GPUs[0].BusID, "8"} {
			t.Run("another's GPU is refused: "+visible, func(t *testing.T) {
				r := run(t, pod, allocated(1), visible)
				if r.ExitCode == 0 || !strings.Contains(r.Stderr, "is not this container's") || strings.Contains(r.Stderr, h.Driver.GPUs[2].UUID) {
					t.Errorf("exit status %d: %s", r.ExitCode, r.Stderr)
				}
			})
		}
		t.Run("a trusted namespace may ask", func(t *testing.T) {
			has(t, run(t, []string{pod[0], "io.kubernetes.cri.sandbox-namespace=kube-system"}, nil, "0,2"), 0, 2)
		})
		for _, namespace := range []string{"kube-system2", "kube-system ", "Kube-System", ""} {
			t.Run(fmt.Sprintf("a namespace that looks like a trusted one may not: %q", namespace), func(t *testing.T) {
				r := run(t, []string{pod[0], "io.kubernetes.cri.sandbox-namespace=" + namespace}, nil, "0")
				if r.ExitCode == 0 || !strings.Contains(r.Stderr, "is not this container's") {
					t.Errorf("exit status %d: %s%s", r.ExitCode, r.Stdout, r.Stderr)
				}
			})
		}
	})
}

// The hooks of NVIDIA's stack are taken out and never run; those of others stay.
func TestHooksOfNVIDIAAreReplacedAndOthersKept(t *testing.T) {
	h := newDevHost(t, hostOptions{Options: sim.Options{GPUs: 3}})
	minors := devCheckMinors(t, h.Driver)
	nvidia, other := filepath.Join(h.Dir, "nvidia-marker"), filepath.Join(h.Dir, "other-marker")
	hook := func(name, marker string) map[string]any {
		path := filepath.Join(h.Dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho $0 >>"+marker+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return map[string]any{"path": path, "args": []any{name}}
	}
	spec := h.devSpec(t, testenv.RunOptions{Args: devProbeScript(devNodes(h.Driver, minors)), Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}})
	spec["hooks"] = map[string]any{
		"prestart":      []any{hook("first", other), hook("nvidia-container-runtime-hook", nvidia), hook("second", other)},
		"createRuntime": []any{hook("nvidia-ctk", nvidia), hook("nvidia-cdi-hook", nvidia), hook("third", other)},
	}
	out, err := h.devRunSpec(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	devCompare(t, devParse(out), devExpect(h.Driver, minors, []int{1}))
	if data, err := os.ReadFile(nvidia); err == nil {
		t.Errorf("NVIDIA's hooks ran: %s", data)
	}
	data, err := os.ReadFile(other)
	if want := fmt.Sprintf("%[1]s/first\n%[1]s/second\n%[1]s/third\n", h.Dir); err != nil || string(data) != want {
		t.Errorf("other hooks: got %q, want %q: %v", data, want, err)
	}
}
