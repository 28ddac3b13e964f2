package attacks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
)

// bundle is a bundle that a test passes directly to the pod's shim, so that it controls
// config.json.
type bundle struct {
	h    *host
	id   string
	dir  string
	task taskapi.TTRPCTaskService
	ctx  context.Context
}

// newBundle makes a bundle with the specification of o.
func (h *host) newBundle(t *testing.T, o testenv.RunOptions) (b *bundle, spec map[string]any) {
	t.Helper()
	b = &bundle{h: h, id: h.NewID()}
	b.dir = filepath.Join(h.Dir, "bundle-"+b.id)
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	b.task, b.ctx = api.Task(t, h.Env, h.pod)
	if o.Args == nil {
		o.Args = []string{"/bin/sleep", "600"}
	}
	spec = h.Spec(t, o)
	spec["linux"].(map[string]any)["cgroupsPath"] = "/" + h.ID + "/" + b.id
	return b, spec
}

func (b *bundle) config() string { return filepath.Join(b.dir, "config.json") }

func (b *bundle) write(t *testing.T, text []byte) {
	t.Helper()
	simhost.WriteFile(t, b.config(), string(text))
}

// create has the shim create the container.
func (b *bundle) create(checkpoint string) error {
	_, err := b.task.Create(b.ctx, &taskapi.CreateTaskRequest{ID: b.id, Bundle: b.dir, Checkpoint: checkpoint})
	return err
}

// start creates and starts the container and returns its process.
func (b *bundle) start() (pid uint32, err error) {
	if err := b.create(""); err != nil {
		return 0, err
	}
	r, err := b.task.Start(b.ctx, &taskapi.StartRequest{ID: b.id})
	return r.GetPid(), err
}

// remove removes the container, if it was created.
func (b *bundle) remove(t *testing.T) {
	t.Helper()
	if _, err := b.task.State(b.ctx, &taskapi.StateRequest{ID: b.id}); err != nil {
		return
	}
	_, _ = b.task.Kill(b.ctx, &taskapi.KillRequest{ID: b.id, Signal: uint32(unix.SIGKILL), All: true})
	if _, err := b.task.Wait(b.ctx, &taskapi.WaitRequest{ID: b.id}); err != nil {
		t.Error(err)
	}
	if _, err := b.task.Delete(b.ctx, &taskapi.DeleteRequest{ID: b.id}); err != nil {
		t.Error(err)
	}
}

func encode(t *testing.T, spec any) []byte {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func decode(t *testing.T, text []byte) any {
	t.Helper()
	var v any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// addFuture adds an unknown field to every object.
func addFuture(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, child := range v {
			addFuture(child)
		}
		v["x-future"] = map[string]any{"number": json.Number("1.0e+400"), "list": []any{"a", nil, false}}
	case []any:
		for _, child := range v {
			addFuture(child)
		}
	}
}

// lost lists what is in before but not in after. Elements may have been added to arrays.
func lost(path string, before, after any) []string {
	switch b := before.(type) {
	case map[string]any:
		a, _ := after.(map[string]any)
		var out []string
		for key, value := range b {
			out = append(out, lost(path+"."+key, value, a[key])...)
		}
		return out
	case []any:
		a, _ := after.([]any)
		for i, value := range b {
			for len(a) > 0 && len(lost("", value, a[0])) > 0 {
				a = a[1:]
			}
			if len(a) == 0 {
				return []string{fmt.Sprintf("%s[%d]: %.200v", path, i, value)}
			}
			a = a[1:]
		}
		return nil
	}
	if !reflect.DeepEqual(before, after) {
		return []string{fmt.Sprintf("%s: %v is now %v", path, before, after)}
	}
	return nil
}

func TestT50T54UnknownFieldsAreKeptAndASecondEditAddsNothing(t *testing.T) {
	h := newHost(t, simhost.Options{})
	b, spec := h.newBundle(t, testenv.RunOptions{RootfsDir: h.Tree(t, "glibc-hwcaps"), Env: []string{one, everything}})
	// runc reads some of these objects as maps of strings.
	annotations := spec["annotations"]
	delete(spec, "annotations")
	addFuture(spec)
	if annotations != nil {
		spec["annotations"] = annotations
	}
	if linux := spec["linux"].(map[string]any); linux["sysctl"] != nil {
		delete(linux["sysctl"].(map[string]any), "x-future")
	}
	b.write(t, encode(t, spec))
	before := decode(t, encode(t, spec))
	var first []byte
	h.unharmed(t, func() {
		for range 3 {
			if err := b.create(""); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(b.config())
			if err != nil {
				t.Fatal(err)
			}
			b.remove(t)
			if first == nil {
				first = text
			}
			if !bytes.Equal(first, text) {
				t.Errorf("edited again config.json is\n%s\nit was\n%s", text, first)
			}
		}
	})
	if gone := lost("", before, decode(t, first)); len(gone) > 0 {
		t.Errorf("lost or changed:\n%s", strings.Join(gone, "\n"))
	}
	if n := strings.Count(string(first), `"/dev/nvidiactl"`); n != 1 {
		t.Errorf("nvidiactl is there %d times:\n%s", n, first)
	}
}

// asRunc fails the test unless runc, which accepts keys in any case and takes the last of several,
// reads the edited configuration as the shim does: with the GPU that the environment names and no
// other, and without NVIDIA's hooks.
func (h *host) asRunc(t *testing.T, text []byte) {
	t.Helper()
	var spec specs.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	asked := ""
	for _, v := range spec.Process.Env {
		if value, ok := strings.CutPrefix(v, "NVIDIA_VISIBLE_DEVICES="); ok {
			asked = value
		}
	}
	index, err := strconv.Atoi(asked)
	if err != nil {
		t.Fatalf("the environment asks for %q", asked)
	}
	var nodes []string
	for _, d := range spec.Linux.Devices {
		if name := filepath.Base(d.Path); regexp.MustCompile(`^nvidia\d+$`).MatchString(name) {
			nodes = append(nodes, name)
		}
	}
	if want := fmt.Sprint("nvidia", h.Driver.GPUs[index].Minor); !slices.Equal(nodes, []string{want}) {
		t.Errorf("runc reads GPU %s and the nodes %q, want %s", asked, nodes, want)
	}
	if hooks := encode(t, spec.Hooks); bytes.Contains(hooks, []byte("nvidia-")) {
		t.Errorf("runc reads the hooks %s", hooks)
	}
	if !slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.MountNamespace && n.Path == "" }) {
		t.Errorf("runc reads the namespaces %v", spec.Linux.Namespaces)
	}
}

func TestT51AmbiguousKeysAreRefusedOrMeanWhatRuncReads(t *testing.T) {
	h := newHost(t, simhost.Options{})
	root := h.Tree(t, "glibc-hwcaps")
	const hook = `{"createContainer":[{"path":"/usr/bin/nvidia-cdi-hook","args":["x"]}]}`
	for i, change := range [][2]string{
		{`"mounts":`, `"Mounts":[],"mounts":`}, {`"mounts":`, `"mounts":[],"mounts":`}, {`"mounts":`, `"MOUNTS":`},
		{`"linux":`, `"linux":{},"linux":`}, {`"linux":`, `"Linux":{"namespaces":[]},"linux":`},
		{`"namespaces":`, `"namespaces":[],"Namespaces":`}, {`"namespaces":`, `"Namespaces":[{"type":"mount","path":"/proc/1/ns/mnt"}],"namespaces":`},
		{`"process":`, `"Process":{"env":["NVIDIA_VISIBLE_DEVICES=1"]},"process":`}, {`"process":`, `"process":{"env":["NVIDIA_VISIBLE_DEVICES=1"]},"Process":`},
		{`"env":`, `"env":["NVIDIA_VISIBLE_DEVICES=1"],"Env":`}, {`"env":`, `"Env":["NVIDIA_VISIBLE_DEVICES=1"],"env":`},
		{`"linux":`, `"Hooks":` + hook + `,"linux":`}, {`"linux":`, `"hooks":{},"Hooks":` + hook + `,"linux":`}, {`"linux":`, `"hooks":{"CreateContainer":` + hook[19:] + `,"linux":`},
		{`"resources":`, `"resources":{"devices":[{"allow":true,"access":"rwm"}]},"Resources":`},
		{`"linux":{`, `"linux":{"devices":[{"path":"/dev/nvidiactl","type":"c","major":1e999,"minor":1}],`},
		{`"linux":{`, `"linux":{"devices":[{"path":"/dev/nvidiactl","type":"c","major":1,"minor":11}],`},
		{`{"`, `[{"`}, {`"linux":`, "\"linux\":\x01"},
	} {
		t.Run(fmt.Sprint("T51 case ", i), func(t *testing.T) {
			b, spec := h.newBundle(t, testenv.RunOptions{RootfsDir: root, Env: []string{one}})
			text := encode(t, spec)
			changed := bytes.Replace(text, []byte(change[0]), []byte(change[1]), 1)
			if bytes.Equal(text, changed) {
				t.Fatalf("no %s in %s", change[0], text)
			}
			b.write(t, changed)
			h.unharmed(t, func() {
				defer b.remove(t)
				err := b.create("")
				now, readErr := os.ReadFile(b.config())
				if readErr != nil {
					t.Fatal(readErr)
				}
				if err == nil {
					t.Logf("accepted: %s", change[1])
					h.asRunc(t, now)
				} else if strings.Contains(err.Error(), "\n") {
					t.Errorf("not refused in one line: %v", err)
				}
			})
		})
	}
}

func TestT52ABundleThatOthersCanChangeIsRefused(t *testing.T) {
	h := newHost(t, simhost.Options{})
	root := h.Tree(t, "glibc-hwcaps")
	for name, change := range map[string]func(file string) error{
		"a symbolic link": func(file string) error {
			return errors.Join(os.Rename(file, file+".real"), os.Symlink(file+".real", file))
		},
		"a hard link":                       func(file string) error { return os.Link(file, file+".real") },
		"a FIFO":                            func(file string) error { return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)) },
		"writable by all":                   func(file string) error { return os.Chmod(file, 0o666) },
		"of another owner":                  func(file string) error { return os.Chown(file, 1000, 0) },
		"in a directory that all can write": func(file string) error { return os.Chmod(filepath.Dir(file), 0o777) },
	} {
		t.Run("T52 config.json "+name, func(t *testing.T) {
			b, spec := h.newBundle(t, testenv.RunOptions{RootfsDir: root, Env: []string{one}})
			b.write(t, encode(t, spec))
			if err := change(b.config()); err != nil {
				t.Fatal(err)
			}
			h.unharmed(t, func() {
				defer b.remove(t)
				// A shim that waits for a writer of the FIFO does not answer until the context
				// ends.
				if err := b.create(""); err == nil || strings.Contains(err.Error(), "\n") || b.ctx.Err() != nil {
					t.Errorf("it was created, or not refused in one line: %v", err)
				}
			})
		})
	}
}

// T46: CRIU is not needed. What runc would restore is created from the same bundle instead, because
// only what the shim does to the bundle matters.
func TestT46ACheckpointBringsNoGPUOfItsOwn(t *testing.T) {
	h := newCluster(t, "")
	root := h.Tree(t, "glibc-nocache")
	checkpoint := filepath.Join(h.Dir, "checkpoint")
	if err := os.Mkdir(checkpoint, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, pod, value string
		refusal          string
	}{
		{"T46 of a pod with a GPU", "owner", h.Driver.GPUs[1].UUID, "cannot be restored from a checkpoint"},
		{"T46 of a pod without a GPU", "none", "all", ""},
		{"T46 that names the GPU of another pod", "none", h.Driver.GPUs[0].UUID, "is not this container's"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h.restore(t, root, checkpoint, tc.pod, tc.value, tc.refusal)
		})
	}
}

// restoreWithRunc is a runc without CRIU. Its argument is the real runc.
const restoreWithRunc = `
case " $* " in *" restore "*) ;; *) exec %[1]s "$@" ;; esac
while [ $# -gt 0 ]; do
	case "$1" in
	--root|--log|--log-format) global="$global $1 $2"; shift ;;
	--bundle|--pid-file) local="$local $1 $2"; shift ;;
	--image-path|--work-path|--parent-path|--manage-cgroups-mode) shift ;;
	esac
	last=$1
	shift
done
%[1]s $global create $local $last && exec %[1]s $global start $last
`

// restore makes the shim restore a container that records what it sees.
func (h *host) restore(t *testing.T, root, checkpoint, pod, value, refusal string) {
	t.Helper()
	args := h.ProbeArgs()
	args[len(args)-1] = "(" + args[len(args)-1] + "\n) >/seen.new; mv /seen.new /seen; sleep 600"
	b, spec := h.newBundle(t, testenv.RunOptions{RootfsDir: root, Annotations: simhost.PodAnnotations("team", pod, "main"), Env: []string{"NVIDIA_VISIBLE_DEVICES=" + value}, Args: args})
	b.write(t, encode(t, spec))
	seen := filepath.Join(root, "seen")
	_ = os.Remove(seen)
	h.unharmed(t, func() {
		defer b.remove(t)
		script := simhost.Script(t, filepath.Join(h.Dir, "runc-restore"), fmt.Sprintf(restoreWithRunc, filepath.Join(h.Options.ToolsDir, "runc")))
		_, err := b.task.Create(b.ctx, &taskapi.CreateTaskRequest{ID: b.id, Bundle: b.dir, Checkpoint: checkpoint, Options: api.RuntimeOptions(t, "BinaryName = \""+script+"\"\n")})
		if refusal != "" {
			if err == nil || !strings.Contains(err.Error(), refusal) {
				t.Errorf("not refused: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.task.Start(b.ctx, &taskapi.StartRequest{ID: b.id}); err != nil {
			t.Fatal(err)
		}
		testenv.Await(t, "the container has looked", func() bool { _, err := os.Stat(seen); return err == nil })
	})
	if refusal != "" {
		return
	}
	data, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	got := simhost.Parse(string(data))
	if len(got.Dev) > 0 || strings.Contains(strings.Join(got.Mknod, " "), "ENXIO") {
		t.Errorf("the container has devices: %+v", got)
	}
}
