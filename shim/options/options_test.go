package options

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runc "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func anyOf(t testing.TB, typeURL string, m proto.Message) *anypb.Any {
	t.Helper()
	value, err := proto.Marshal(m)
	check(t, err)
	return &anypb.Any{TypeUrl: typeURL, Value: value}
}

func tomlTable(t testing.TB, body string) *anypb.Any {
	t.Helper()
	return anyOf(t, "runtimeoptions.v1.Options", &runtimeoptions.Options{ConfigBody: []byte(body)})
}

func TestTranslate(t *testing.T) {
	full := &runc.Options{
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
		want       *runc.Options
		systemdSet bool
	}{
		{"no options mean runc's defaults", nil, &runc.Options{}, false},
		{"an empty message means no options", &anypb.Any{}, &runc.Options{}, false},
		{"runc's options", anyOf(t, "containerd.runc.v1.Options", full), full, true},
		{"runc's options with the prefix that anypb writes", anyOf(t, "type.googleapis.com/containerd.runc.v1.Options", full), full, true},
		{"empty options of runc", anyOf(t, "containerd.runc.v1.Options", &runc.Options{}), &runc.Options{}, false},
		{"every key of a table", tomlTable(t, fullTOML), full, true},
		{"a table in containerd 1.6", anyOf(t, "cri.runtimeoptions.v1.Options", &runtimeoptions.Options{ConfigBody: []byte(fullTOML)}), full, true},
		{"an empty table", tomlTable(t, ""), &runc.Options{}, false},
		{"a table with the keys by which CRI finds it", tomlTable(t, "TypeUrl = \"runtimeoptions.v1.Options\"\nConfigPath = \"/x\"\nConfigBody = \"\"\nBinaryName = \"runc\"\n"), &runc.Options{BinaryName: "runc"}, false},
		{"an explicit SystemdCgroup = false", tomlTable(t, "SystemdCgroup = false\n"), &runc.Options{}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Translate(tc.any)
			check(t, err)
			if !proto.Equal(got.Runc, tc.want) || got.SystemdCgroupSet != tc.systemdSet || got.Overrides != nil {
				t.Errorf("got %v, systemd set %v, overrides %q; want %v, %v", got.Runc, got.SystemdCgroupSet, got.Overrides, tc.want, tc.systemdSet)
			}
			// Whatever came in, the embedded service gets runc's own type.
			message, err := RuncMessage(tc.any)
			check(t, err)
			sent := &runc.Options{}
			if err := message.UnmarshalTo(sent); err != nil || !proto.Equal(sent, tc.want) {
				t.Errorf("the message holds %v, %v", message, err)
			}
		})
	}
}

func TestTranslateReadsTheNamedFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, body string, mode os.FileMode) *anypb.Any {
		name = filepath.Join(dir, name)
		check(t, os.WriteFile(name, []byte(body), mode))
		check(t, os.Chmod(name, mode))
		return anyOf(t, "runtimeoptions.v1.Options", &runtimeoptions.Options{ConfigPath: name})
	}
	got, err := Translate(write("good.toml", "BinaryName = \"crun\"\n[policy]\nkubernetes = \"audit\"\n", 0o600))
	if err != nil || got.Runc.BinaryName != "crun" || !strings.Contains(string(got.Overrides), "audit") {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, any := range map[string]*anypb.Any{
		"is writable by users other than root": write("open.toml", "", 0o666),
		`line 1: unknown key "Nonsense"`:       write("unknown.toml", "Nonsense = 1\n", 0o600),
		"no such file":                         anyOf(t, "runtimeoptions.v1.Options", &runtimeoptions.Options{ConfigPath: dir + "/absent.toml"}),
		"is not a regular file":                anyOf(t, "runtimeoptions.v1.Options", &runtimeoptions.Options{ConfigPath: dir}),
	} {
		if _, err := Translate(any); !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), dir) {
			t.Errorf("got %v, want InvalidArgument with %s and the file's name", err, name)
		}
	}
}

func TestTranslateKeepsOverrides(t *testing.T) {
	got, err := Translate(tomlTable(t, "SystemdCgroup = true\n[policy]\nkubernetes = \"trust-env\"\n[container]\nsupported-capabilities = [\"utility\"]\ndefault-capabilities = [\"utility\"]\n"))
	check(t, err)
	cfg := config.Default()
	if err := cfg.Override(got.Overrides); err != nil || cfg.Policy.Kubernetes != config.TrustEnv || !slices.Equal(cfg.Container.DefaultCapabilities, []string{"utility"}) {
		t.Errorf("%v: %+v", err, cfg)
	}
	if !got.Runc.SystemdCgroup {
		t.Error("runc's key beside the tables was lost")
	}
}

func TestTranslateNamesWhatItRefuses(t *testing.T) {
	long := strings.Repeat("x", 10000)
	for _, tc := range []struct {
		name string
		any  *anypb.Any
		word string
	}{
		{"another type", anyOf(t, "google.protobuf.Empty", &emptypb.Empty{}), "google.protobuf.Empty"},
		{"a type of another runtime", &anypb.Any{TypeUrl: "io.containerd.runsc.v1.options"}, "io.containerd.runsc.v1.options"},
		{"a value without a type", &anypb.Any{Value: []byte{1}}, "not supported"},
		{"a type whose name ends like runc's", &anypb.Any{TypeUrl: "xcontainerd.runc.v1.Options"}, "xcontainerd.runc.v1.Options"},
		{"a type with a long name", &anypb.Any{TypeUrl: long}, "not supported"},
		{"runc's options that cannot be decoded", &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: []byte{0x0a, 0xff}}, "containerd.runc.v1.Options"},
		{"a table that cannot be decoded", &anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: []byte{0x0a, 0xff}}, "runtimeoptions.v1.Options"},
		{"an unknown key", tomlTable(t, "BinaryNam = \"runc\"\n"), `unknown key "BinaryNam"`},
		{"a key in the wrong case of a table", tomlTable(t, "[policy]\nKubernets = \"audit\"\n"), "Kubernets"},
		{"a bad value of a table", tomlTable(t, "[policy]\nkubernetes = \"maybe\"\n"), `"maybe"`},
		{"an unknown capability of a table", tomlTable(t, "[container]\nsupported-capabilities = [\"magic\"]\n"), "magic"},
		{"a table that a handler must not set", tomlTable(t, "[host]\ndriver-root = \"/\"\n"), "host"},
		{"a value of the wrong type", tomlTable(t, "NoPivotRoot = \"yes\"\n"), `"NoPivotRoot": want true or false, not a string`},
		{"a number that is out of range", tomlTable(t, "IoUid = -1\n"), `"IoUid": negative integer value -1 is out of range`},
		{"a value for a table", tomlTable(t, "policy = \"audit\"\n"), `"policy": want a table, not a string`},
		{"invalid TOML", tomlTable(t, "= =\n"), "runtime options: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Translate(tc.any)
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), tc.word) {
				t.Fatalf("got %v, want InvalidArgument with %s", err, tc.word)
			}
			// containerd has encoded the table again.
			if s := err.Error(); strings.Contains(s, "\n") || len(s) > 1024 || strings.Contains(s, ": line ") {
				t.Errorf("the error is not one short line, without that of a file: %d bytes, %.200q", len(s), s)
			}
		})
	}
}

// FuzzTranslate holds that options of any type and content are translated or refused by name: the
// embedded service panics over those that it does not know.
func FuzzTranslate(f *testing.F) {
	for _, body := range []string{"", "SystemdCgroup = true\n[policy]\nkubernetes = \"audit\"\n", "[container]\nx = 1\n", "BinaryName = 1979-05-27\n", "IoUid = -1\n"} {
		f.Add("", []byte(body))
		f.Add(typeRuntime, anyOf(f, "", &runtimeoptions.Options{ConfigBody: []byte(body)}).Value)
	}
	f.Add("types.containerd.io/"+typeRunc, anyOf(f, "", &runc.Options{Root: "/r", IoUid: 1}).Value)
	f.Add(typeOldRuntime, anyOf(f, "", &runtimeoptions.Options{ConfigPath: "/nonexistent"}).Value)
	f.Add("google.protobuf.Empty", []byte{0xff})
	f.Fuzz(func(t *testing.T, typeURL string, value []byte) {
		out, err := Translate(&anypb.Any{TypeUrl: typeURL, Value: value})
		if err == nil && out.Runc == nil {
			t.Error("neither options nor an error")
		}
		if err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("error %q", err)
		}
		// The body of a table, too.
		if _, err := fromTOML(value); err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("error %q", err)
		}
	})
}
