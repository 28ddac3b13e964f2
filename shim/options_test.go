package shim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

func anyOf(t testing.TB, typeURL string, m proto.Message) *anypb.Any {
	t.Helper()
	value, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return &anypb.Any{TypeUrl: typeURL, Value: value}
}

func tomlTable(t testing.TB, body string) *anypb.Any {
	t.Helper()
	return anyOf(t, "runtimeoptions.v1.Options", &runtimeoptions.Options{ConfigBody: []byte(body)})
}

func TestTranslate(t *testing.T) {
	full := &options.Options{
		NoPivotRoot: true, NoNewKeyring: true, ShimCgroup: "/shims", IoUid: 1, IoGid: 2, BinaryName: "/opt/crun",
		Root: "/run/x", SystemdCgroup: true, CriuImagePath: "/i", CriuWorkPath: "/w",
	}
	const fullTOML = `
NoPivotRoot = true
NoNewKeyring = true
ShimCgroup = "/shims"
IoUid = 1
IoGid = 2
BinaryName = "/opt/crun"
Root = "/run/x"
SystemdCgroup = true
CriuImagePath = "/i"
CriuWorkPath = "/w"
`
	for _, tc := range []struct {
		name       string
		any        *anypb.Any
		want       *options.Options
		systemdSet bool
	}{
		{"no options are runc's defaults", nil, &options.Options{}, false},
		{"an empty message is none", &anypb.Any{}, &options.Options{}, false},
		{"runc's options pass as they are", anyOf(t, "containerd.runc.v1.Options", full), full, true},
		{"the prefix that anypb writes is passed over", anyOf(t, "type.googleapis.com/containerd.runc.v1.Options", full), full, true},
		{"empty options of runc", anyOf(t, "containerd.runc.v1.Options", &options.Options{}), &options.Options{}, false},
		{"every key of a table", tomlTable(t, fullTOML), full, true},
		{"a table under CRI's old name of the type", anyOf(t, "cri.runtimeoptions.v1.Options", &runtimeoptions.Options{ConfigBody: []byte(fullTOML)}), full, true},
		{"an empty table", tomlTable(t, ""), &options.Options{}, false},
		{"a table with the keys by which CRI found it", tomlTable(t, "TypeUrl = \"runtimeoptions.v1.Options\"\nConfigPath = \"/x\"\nConfigBody = \"\"\nBinaryName = \"runc\"\n"), &options.Options{BinaryName: "runc"}, false},
		{"SystemdCgroup = false is a word too", tomlTable(t, "SystemdCgroup = false\n"), &options.Options{}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Translate(tc.any)
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got.Runc, tc.want) || got.SystemdCgroupSet != tc.systemdSet || got.Overrides != nil {
				t.Errorf("got %v, systemd set %v, overrides %q; want %v, %v", got.Runc, got.SystemdCgroupSet, got.Overrides, tc.want, tc.systemdSet)
			}
		})
	}
}

func TestTranslateReadsTheNamedFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, body string, mode os.FileMode) *anypb.Any {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(body), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		return anyOf(t, "runtimeoptions.v1.Options", &runtimeoptions.Options{ConfigPath: name})
	}
	got, err := Translate(write("good.toml", "BinaryName = \"crun\"\n[policy]\nkubernetes = \"audit\"\n", 0o600))
	if err != nil || got.Runc.BinaryName != "crun" || !strings.Contains(string(got.Overrides), "audit") {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, any := range map[string]*anypb.Any{
		"can be written by others": write("open.toml", "", 0o666),
		`unknown key "Nonsense"`:   write("unknown.toml", "Nonsense = 1\n", 0o600),
		"no such file":             anyOf(t, "runtimeoptions.v1.Options", &runtimeoptions.Options{ConfigPath: dir + "/absent.toml"}),
		"is not a regular file":    anyOf(t, "runtimeoptions.v1.Options", &runtimeoptions.Options{ConfigPath: dir}),
	} {
		if _, err := Translate(any); !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), dir) {
			t.Errorf("got %v, want InvalidArgument with %s and the file's name", err, name)
		}
	}
}

func TestTranslateTakesTheTablesOfThisShim(t *testing.T) {
	got, err := Translate(tomlTable(t, "SystemdCgroup = true\n[policy]\nkubernetes = \"trust-env\"\n[container]\nsupported-capabilities = [\"utility\"]\ndefault-capabilities = [\"utility\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"trust-env", "supported-capabilities", "[policy]", "[container]"} {
		if !strings.Contains(string(got.Overrides), word) {
			t.Errorf("overrides %q have no %s", got.Overrides, word)
		}
	}
	if !got.Runc.SystemdCgroup {
		t.Error("runc's key beside the tables was lost")
	}
	// Every key of runc's and CRI's may stand beside the tables.
	for i := range reflect.TypeFor[table]().NumField() {
		field := reflect.TypeFor[table]().Field(i)
		key, value := cmp.Or(field.Tag.Get("toml"), field.Name), `""`
		switch k := field.Type.Kind(); {
		case key == "policy" || key == "container":
			continue
		case k == reflect.Bool || k == reflect.Pointer:
			value = "true"
		case k == reflect.Uint32:
			value = "1"
		}
		o, err := Translate(tomlTable(t, key+" = "+value+"\n[policy]\nkubernetes = \"audit\"\n"))
		cfg := config.Default()
		if err == nil {
			err = cfg.Override(o.Overrides)
		}
		if err != nil || cfg.Policy.Kubernetes != config.Audit {
			t.Errorf("%s beside a table: %v, policy %q", key, err, cfg.Policy.Kubernetes)
		}
	}
}

func TestTranslateRefusesByName(t *testing.T) {
	long := strings.Repeat("x", 10000)
	for _, tc := range []struct {
		name string
		any  *anypb.Any
		word string
	}{
		{"another type", anyOf(t, "google.protobuf.Empty", &emptypb.Empty{}), "google.protobuf.Empty"},
		{"a type of another runtime", &anypb.Any{TypeUrl: "io.containerd.runsc.v1.options"}, "io.containerd.runsc.v1.options"},
		{"a value without a type", &anypb.Any{Value: []byte{1}}, "not supported"},
		{"a name that only ends like runc's", &anypb.Any{TypeUrl: "xcontainerd.runc.v1.Options"}, "xcontainerd.runc.v1.Options"},
		{"a type of endless length", &anypb.Any{TypeUrl: long}, "not supported"},
		{"runc's options that cannot be decoded", &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: []byte{0x0a, 0xff}}, "containerd.runc.v1.Options"},
		{"a table that cannot be decoded", &anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: []byte{0x0a, 0xff}}, "runtimeoptions.v1.Options"},
		{"an unknown key", tomlTable(t, "BinaryNam = \"runc\"\n"), `unknown key "BinaryNam"`},
		{"a key in the wrong case of a table", tomlTable(t, "[policy]\nKubernets = \"audit\"\n"), "Kubernets"},
		{"a bad value of a table", tomlTable(t, "[policy]\nkubernetes = \"maybe\"\n"), `"maybe"`},
		{"an unknown capability of a table", tomlTable(t, "[container]\nsupported-capabilities = [\"magic\"]\n"), "magic"},
		{"a table that a handler may not set", tomlTable(t, "[host]\ndriver-root = \"/\"\n"), "host"},
		{"a value of the wrong type", tomlTable(t, "NoPivotRoot = \"yes\"\n"), "NoPivotRoot"},
		{"what is no TOML", tomlTable(t, "= =\n"), "line 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Translate(tc.any)
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), tc.word) {
				t.Fatalf("got %v, want InvalidArgument with %s", err, tc.word)
			}
			if s := err.Error(); strings.Contains(s, "\n") || len(s) > 1024 {
				t.Errorf("the error is not one short line: %d bytes, %.200q", len(s), s)
			}
		})
	}
}

// What the embedded service gets is a message that it knows, whatever came in.
func TestMessageIsRuncsOwn(t *testing.T) {
	for _, any := range []*anypb.Any{nil, tomlTable(t, "BinaryName = \"crun\"\n"), anyOf(t, "containerd.runc.v1.Options", &options.Options{Root: "/r"})} {
		o, err := Translate(any)
		if err != nil {
			t.Fatal(err)
		}
		message, err := o.message()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Translate(message)
		if err != nil || message.TypeUrl != "containerd.runc.v1.Options" || !proto.Equal(again.Runc, o.Runc) {
			t.Errorf("got %v, %v from %v", message, err, any)
		}
	}
}

// Nothing is taken apart and put together again that says the same already.
func TestOptionsThatNeedNoTranslationPassAsTheyAre(t *testing.T) {
	sent := anyOf(t, "containerd.runc.v1.Options", &options.Options{Root: "/r", SystemdCgroup: true})
	for _, tc := range []struct {
		name  string
		any   *anypb.Any
		path  string
		value []byte // nil: none
		same  bool
	}{
		{"none", nil, "/docker/abc", nil, false},
		{"none, and a path of systemd's", nil, "system.slice:docker:abc", anyOf(t, "", &options.Options{SystemdCgroup: true}).Value, false},
		{"runc's", sent, "system.slice:docker:abc", sent.Value, true},
		{"runc's, and another path", sent, "/docker/abc", anyOf(t, "", &options.Options{Root: "/r"}).Value, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &taskapi.CreateTaskRequest{ID: "c1", Options: tc.any}
			opts, err := Translate(r.Options)
			if err != nil {
				t.Fatal(err)
			}
			if err := setOptions(t.Context(), r, opts, []byte(`{"linux":{"cgroupsPath":"`+tc.path+`"}}`)); err != nil {
				t.Fatal(err)
			}
			if got := r.Options; got.GetTypeUrl() != runcOptions || !bytes.Equal(got.GetValue(), tc.value) || (got.GetValue() == nil) != (tc.value == nil) || (got == tc.any) != tc.same {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestSystemdForm(t *testing.T) {
	for _, tc := range []struct {
		path           string
		systemd, known bool
	}{
		{"system.slice:cri-containerd:abc", true, true},
		{"kubepods-burstable-pod12.slice:cri-containerd:abc", true, true},
		{":cri-containerd:abc", true, true},
		{"/kubepods/burstable/pod12/abc", false, true},
		{"/default/c1", false, true},
		{"default/a:b:c", false, true},
		{"a:b", false, true},
		{"system.slice:a:b:c", false, true},
		{"", false, true},
	} {
		t.Run(tc.path, func(t *testing.T) {
			for _, raw := range []string{
				fmt.Sprintf(`{"linux":{"cgroupsPath":%q}}`, tc.path),
				fmt.Sprintf("{\"linux\": {\n\t\"cgroupsPath\" : %q\n}}", tc.path),
			} {
				if systemd, known := systemdForm([]byte(raw)); systemd != tc.systemd || known != tc.known {
					t.Errorf("%s: got %v, %v", raw, systemd, known)
				}
			}
		})
	}
	if systemd, known := systemdForm([]byte(`{"annotations":{"cgroupsPath":"a.slice:b:c"},"linux":{}}`)); systemd || known {
		t.Errorf("an annotation is taken for the path: got %v, %v", systemd, known)
	}
	if systemd, known := systemdForm([]byte(`{"linux":{}}`)); systemd || known {
		t.Errorf("without a path: got %v, %v", systemd, known)
	}
	if systemd, known := systemdForm(nil); systemd || known {
		t.Errorf("without a configuration: got %v, %v", systemd, known)
	}
}

func TestInfoOfForeignOptionsIsAnErrorAndNoCrash(t *testing.T) {
	m := NewManager()
	data, err := proto.Marshal(&anypb.Any{TypeUrl: "example.com/x.Options", Value: []byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Info(context.Background(), bytes.NewReader(data)); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("got %v", err)
	}
	if _, err := m.Info(context.Background(), strings.NewReader("\xff\xff")); err == nil {
		t.Error("what is no message was taken")
	}
	// A runc that is not there: the shim is, all the same.
	absent := anyOf(t, "containerd.runc.v1.Options", &options.Options{BinaryName: "/nowhere/runc"})
	if data, err = proto.Marshal(absent); err != nil {
		t.Fatal(err)
	}
	info, err := m.Info(context.Background(), bytes.NewReader(data))
	if err != nil || info.Name != RuntimeName {
		t.Errorf("got %v, %v", info, err)
	}
}

func TestOnlyOptionsAreTakenForOptions(t *testing.T) {
	for typeURL, want := range map[string]bool{
		"containerd.runc.v1.Options":                     true,
		"type.googleapis.com/containerd.runc.v1.Options": true,
		"runtimeoptions.v1.Options":                      true,
		"":                                               false,
		"containerd.types.MountCapabilities":             false,
	} {
		if got := isOptions(&anypb.Any{TypeUrl: typeURL}); got != want {
			t.Errorf("%q: got %v", typeURL, got)
		}
	}
	if isOptions(nil) {
		t.Error("no extension is taken for options")
	}
	if any, err := anypb.New(&types.MountCapabilities{}); err != nil || isOptions(any) {
		t.Errorf("mount capabilities are taken for options: %v", err)
	}
}

func BenchmarkSystemdForm(b *testing.B) {
	profile := strings.Repeat(`{"names":["name_of_a_system_call"],"action":"SCMP_ACT_ALLOW"},`, 1000)
	raw := []byte(`{"linux":{"cgroupsPath":"kubepods.slice:cri-containerd:abc","seccomp":{"syscalls":[` + strings.TrimSuffix(profile, ",") + `]}}}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if systemd, known := systemdForm(raw); !systemd || !known {
			b.Fatal("not known")
		}
	}
}
