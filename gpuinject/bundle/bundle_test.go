package bundle

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

const config = `{
  "ociVersion": "9.9.9", "future": {"a": 1.0e400, "b": [ 1 , 2 ]},
  "process": {"env": ["A=1"], "user": {"uid": 0, "gid": 0, "futureUser": true}, "landlock": {"x": "y"}},
  "mounts": [{"destination": "/proc", "type": "proc", "futureMount": [1]}],
  "hooks": {"createContainer": [{"path": "/usr/bin/nvidia-cdi-hook", "args": ["x"]}, {"path": "/opt/other", "futureHook": 1}], "futureStage": [7]},
  "linux": {"devices": null, "seccomp": {"futureAction": "SCMP"}, "memoryPolicy": {"mode": "x"},
    "resources": {"devices": [{"allow": false, "access": "rwm"}], "rdma": {"x": {"hcaHandles": 3}}}}
}`

func load(t *testing.T, text string) *Bundle {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ConfigName), []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	b, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func edits() Edits {
	major, minor := int64(195), int64(0)
	return Edits{
		Devices:        []specs.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0}},
		Rules:          []specs.LinuxDeviceCgroup{{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"}},
		Mounts:         []specs.Mount{{Destination: "/usr/local/nvidia", Type: "bind", Source: "/run/view", Options: []string{"rbind", "ro"}}},
		AdditionalGids: []uint32{44},
		RemoveHook:     func(h specs.Hook) bool { return strings.Contains(h.Path, "nvidia") },
	}
}

func generic(t *testing.T, raw []byte) map[string]any {
	t.Helper()
	var m map[string]any
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestEditsChangeOnlyWhatTheyAdd(t *testing.T) {
	b := load(t, config)
	removed, err := b.Apply(edits())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(removed, []string{"/usr/bin/nvidia-cdi-hook"}) {
		t.Errorf("removed hooks %q", removed)
	}
	got, want := generic(t, b.Raw()), generic(t, []byte(config))
	linux := want["linux"].(map[string]any)
	linux["devices"] = []any{map[string]any{"path": "/dev/nvidia0", "type": "c", "major": json.Number("195"), "minor": json.Number("0")}}
	res := linux["resources"].(map[string]any)
	res["devices"] = append(res["devices"].([]any), map[string]any{"allow": true, "type": "c", "major": json.Number("195"), "minor": json.Number("0"), "access": "rw"})
	want["mounts"] = append(want["mounts"].([]any), map[string]any{"destination": "/usr/local/nvidia", "type": "bind", "source": "/run/view", "options": []any{"rbind", "ro"}})
	want["process"].(map[string]any)["user"].(map[string]any)["additionalGids"] = []any{json.Number("44")}
	hooks := want["hooks"].(map[string]any)
	hooks["createContainer"] = hooks["createContainer"].([]any)[1:]
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if !strings.Contains(string(b.Raw()), "1.0e400") {
		t.Error("a number that no Go type holds was not kept as written")
	}
	sameView(t, b)
}

// sameView fails the test where the view is not that of the bytes.
func sameView(t *testing.T, b *Bundle) {
	t.Helper()
	again, err := Parse(b.Dir, b.Raw(), b.mode)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(again.Spec, b.Spec) {
		t.Errorf("the view is %+v, of the same bytes Parse makes %+v", b.Spec, again.Spec)
	}
}

func TestAMountThatIsTakenOutLeavesTheOthersAsTheyWere(t *testing.T) {
	b := load(t, `{"mounts": [{"destination": "/a", "future": 1}, {"destination": "/b", "uidMappings": [{"containerID": 0, "hostID": 9, "size": 1}]}, {"destination": "/c"}]}`)
	mapped := Edits{RemoveMount: func(m specs.Mount) bool { return len(m.UIDMappings) > 0 }}
	for range 2 {
		if _, err := b.Apply(mapped); err != nil {
			t.Fatal(err)
		}
		want := generic(t, []byte(`{"mounts": [{"destination": "/a", "future": 1}, {"destination": "/c"}]}`))
		if got := generic(t, b.Raw()); !reflect.DeepEqual(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
		sameView(t, b)
	}
}

func TestEditingTwiceChangesNothing(t *testing.T) {
	b := load(t, config)
	if _, err := b.Apply(edits()); err != nil {
		t.Fatal(err)
	}
	once := string(b.Raw())
	if _, err := b.Apply(edits()); err != nil {
		t.Fatal(err)
	}
	if string(b.Raw()) != once {
		t.Errorf("second edit:\n%s\nfirst:\n%s", b.Raw(), once)
	}
}

func TestSaveKeepsTheModeAndLeavesNoOtherFile(t *testing.T) {
	b := load(t, config)
	if _, err := b.Apply(edits()); err != nil {
		t.Fatal(err)
	}
	if err := b.Save(); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(b.Dir)
	if len(entries) != 1 {
		t.Errorf("bundle holds %v", entries)
	}
	info, err := os.Stat(filepath.Join(b.Dir, ConfigName))
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	again, err := Load(b.Dir)
	if err != nil || len(again.Spec.Mounts) != 2 {
		t.Errorf("saved file reads back as %v, %v", again, err)
	}
}

func TestAmbiguousOrHostileConfigurationsAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"a key in another case beside the standard one": `{"mounts": [], "Mounts": []}`,
		"a key in another case alone":                   `{"Mounts": []}`,
		"a key twice":                                   `{"mounts": [], "mounts": []}`,
		"a nested key in another case":                  `{"linux": {"Resources": {"devices": []}}}`,
		"another device at the path":                    `{"linux": {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 11}]}}`,
		"mounts that are no array":                      `{"linux": {"devices": {}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, ConfigName), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			b, err := Load(dir)
			if err == nil {
				_, err = b.Apply(edits())
			}
			if err == nil {
				t.Fatalf("accepted: %s", b.Raw())
			}
			if !strings.Contains(err.Error(), ConfigName) && !strings.Contains(err.Error(), "/dev/nvidia0") {
				t.Errorf("error names neither file nor device: %v", err)
			}
		})
	}
}

func TestOnlyAnOrdinaryFileOfRootIsRead(t *testing.T) {
	for name, make := range map[string]func(file string) error{
		"symbolic link": func(file string) error {
			if err := os.WriteFile(file+".real", []byte("{}"), 0o600); err != nil {
				return err
			}
			return os.Symlink(file+".real", file)
		},
		"hard link": func(file string) error {
			if err := os.WriteFile(file+".real", []byte("{}"), 0o600); err != nil {
				return err
			}
			return os.Link(file+".real", file)
		},
		"FIFO":             func(file string) error { return syscall.Mkfifo(file, 0o600) },
		"writable by all":  func(file string) error { _ = os.WriteFile(file, []byte("{}"), 0o600); return os.Chmod(file, 0o666) },
		"of another owner": func(file string) error { _ = os.WriteFile(file, []byte("{}"), 0o600); return os.Chown(file, 1000, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := make(filepath.Join(dir, ConfigName)); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(dir); err == nil {
				t.Error("accepted")
			}
		})
	}
}

// The fast ways through a configuration find what encoding/json finds.
func FuzzScan(f *testing.F) {
	f.Add([]byte(config))
	f.Add([]byte(`{"linux":{"seccomp":{"a":["]\\\""]},"cgroupsPath":"/a"},"annotations":{"cgroupsPath":"b:c:d"}}`))
	f.Add([]byte(`{"annotations":{"\u0063groupsPath":"x"},"linux":{"cgroupsPath":"a:b:c","seccomp":null}}`))
	f.Add([]byte(`{"linux":{"cgroupsPath":"`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		path, ok := CgroupsPath(raw)
		if !json.Valid(raw) {
			return
		}
		var want, got Spec
		if err := json.Unmarshal(raw, &want); err != nil {
			return
		}
		if err := json.Unmarshal(withoutSeccomp(raw), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("without seccomp: %+v, want %+v (%v)", got, want, err)
		}
		if ok && (want.Linux == nil || want.Linux.CgroupsPath != path) {
			t.Errorf("cgroups path %q, want that of %+v", path, want.Linux)
		}
	})
}

func TestCgroupsPathIsThatOfLinux(t *testing.T) {
	for text, want := range map[string]string{
		`{"linux":{"cgroupsPath":"a.slice:b:c"}}`:                                                             "a.slice:b:c",
		"{ \"process\" : {\"args\":[\"cgroupsPath\"]},\n\t\"linux\" : { \"cgroupsPath\" :\t\"/a\\u0062\" } }": "/ab",
		`{"annotations":{"cgroupsPath":"no"},"linux":{"cgroupsPath":"/yes"}}`:                                 "/yes",
		`{"linux":{"x":{"cgroupsPath":"no"},"cgroupsPath":"/yes"}}`:                                           "/yes",
		`{"annotations":{"cgroupsPath":"no"}}`:                                                                "none",
		`{"annotations":{"cgroupsPath":"no"},"linux":{}}`:                                                     "none",
		`{"process":{"env":["\"cgroupsPath\":\"no\""]},"linux":{"seccomp":{"cgroupsPath":"no"}}}`:             "none",
		`{"linux":{"cgroupsPath":null}}`:                                                                      "none",
		`{"linux":{"cgroupsPath":1}}`:                                                                         "none",
		`{"linux":{"cgroupsPath":"a`:                                                                          "none",
		`{"linux":{"cgroupsPath"`:                                                                             "none",
		``:                                                                                                    "none",
	} {
		path, ok := CgroupsPath([]byte(text))
		if !ok {
			path = "none"
		}
		if path != want {
			t.Errorf("%s: got %q, want %q", text, path, want)
		}
	}
}

func BenchmarkApply(b *testing.B) {
	profile := strings.Repeat(`{"names":["name_of_a_system_call","another_name"],"action":"SCMP_ACT_ALLOW"},`, 800)
	text := strings.Replace(config, `"seccomp": {`, `"seccomp": {"syscalls":[`+strings.TrimSuffix(profile, ",")+`],`, 1)
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		c, err := Parse("", []byte(text), 0o600)
		if err == nil {
			_, err = c.Apply(edits())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzApply(f *testing.F) {
	f.Add([]byte(config))
	f.Add([]byte(`{"linux":{"devices":[{}]},"mounts":null}`))
	f.Add([]byte(`{"hooks":{"prestart":[{"path":"nvidia"}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := Parse("/bundle", raw, 0o600)
		if err != nil {
			return
		}
		if _, err := b.Apply(edits()); err != nil {
			return
		}
		if !json.Valid(b.Raw()) {
			t.Fatalf("not JSON: %s", b.Raw())
		}
		sameView(t, b)
		for _, d := range b.Spec.Linux.Devices {
			if d.Path == "/dev/nvidia0" {
				return
			}
		}
		t.Fatalf("the device is missing: %s", b.Raw())
	})
}
