package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

const config = `{
  "ociVersion": "9.9.9", "future": {"a": 1.0e400, "b": [ 1 , 2 ]},
  "process": {"env": ["A=1"], "user": {"uid": 0, "gid": 0, "futureUser": true}, "landlock": {"x": "y"}},
  "mounts": [{"destination": "/proc", "type": "proc", "futureMount": [1]}],
  "hooks": {"createContainer": [{"path": "/usr/bin/nvidia-cdi-hook", "args": ["x"]}, {"path": "/opt/other", "futureHook": 1}], "futureStage": [7]},
  "linux": {"devices": null, "seccomp": {"futureAction": "SCMP"}, "memoryPolicy": {"mode": "x"},
    "resources": {"devices": [{"allow": false, "access": "rwm"}], "rdma": {"x": {"hcaHandles": 3}}}}
}`

var check = testtree.Check

func load(t *testing.T, text string) *Bundle {
	t.Helper()
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, ConfigName), []byte(text), 0o640))
	b, err := loadDir(dir)
	check(t, err)
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

// equalJSON fails the test unless two texts are the same JSON, numbers by their text.
func equalJSON(t *testing.T, got, want []byte) {
	t.Helper()
	var values [2]any
	for i, text := range [][]byte{got, want} {
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		check(t, dec.Decode(&values[i]))
	}
	if !reflect.DeepEqual(values[0], values[1]) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestT50T54EditsChangeOnlyWhatTheyName(t *testing.T) {
	b := load(t, config)
	check(t, b.Apply(edits()))
	want := config
	for _, r := range [][2]string{
		{`{"path": "/usr/bin/nvidia-cdi-hook", "args": ["x"]}, `, ``},
		{`"devices": null`, `"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]`},
		{`"access": "rwm"}`, `"access": "rwm"}, {"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"}`},
		{`"futureMount": [1]}`, `"futureMount": [1]}, {"destination": "/usr/local/nvidia", "type": "bind", "source": "/run/view", "options": ["rbind", "ro"]}`},
		{`"futureUser": true`, `"futureUser": true, "additionalGids": [44]`},
	} {
		want = strings.Replace(want, r[0], r[1], 1)
	}
	equalJSON(t, b.Raw(), []byte(want))
	sameSpec(t, b)
	once := string(b.Raw())
	if err := b.Apply(edits()); err != nil || string(b.Raw()) != once {
		t.Errorf("applied again, %v:\n%s\nfirst:\n%s", err, b.Raw(), once)
	}
}

// sameSpec fails the test unless Spec is what the bytes say.
func sameSpec(t *testing.T, b *Bundle) {
	t.Helper()
	again, err := Parse(b.Dir, b.Raw(), b.mode)
	check(t, err)
	if !reflect.DeepEqual(again.Spec, b.Spec) {
		t.Errorf("Spec is %+v, the same bytes are parsed as %+v", b.Spec, again.Spec)
	}
}

func TestWhatIsRemovedLeavesTheRestAsItWas(t *testing.T) {
	b := load(t, `{"mounts": [{"destination": "/a", "future": 1}, {"destination": "/b"}, {"destination": "/c"}],
		"linux": {"devices": [{"path": "/dev/a", "future": 1}, {"path": "/dev/b"}], "resources": {"devices": [{"allow": true, "future": 1}, {"allow": false}]}}}`)
	e := Edits{
		RemoveMount:  func(m specs.Mount) bool { return m.Destination == "/b" },
		RemoveDevice: func(d specs.LinuxDevice) bool { return d.Path == "/dev/b" },
		RemoveRule:   func(r specs.LinuxDeviceCgroup) bool { return !r.Allow },
	}
	for range 2 {
		check(t, b.Apply(e))
		equalJSON(t, b.Raw(), []byte(`{"mounts": [{"destination": "/a", "future": 1}, {"destination": "/c"}],
			"linux": {"devices": [{"path": "/dev/a", "future": 1}], "resources": {"devices": [{"allow": true, "future": 1}]}}}`))
		sameSpec(t, b)
	}
}

func TestARuleIsAddedUnlessItDecidesAlready(t *testing.T) {
	const exact = `{"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rwm"}`
	for rules, added := range map[string]bool{
		exact: false,
		exact + `, {"allow": true, "type": "c", "major": 195, "minor": 1, "access": "rw"}`: false,
		exact + `, {"allow": false, "access": "rwm"}`:                                      true,
		exact + `, {"allow": false, "type": "c", "major": 1, "minor": 1, "access": "rwm"}`: true,
		`{"allow": true, "type": "c", "major": 195, "minor": 0, "access": "r"}`:            true,
		`{"allow": true, "type": "b", "major": 195, "minor": 0, "access": "rw"}`:           true,
	} {
		b := load(t, `{"linux": {"resources": {"devices": [`+rules+`]}}}`)
		before := len(b.Spec.Linux.Resources.Devices)
		check(t, b.Apply(edits()))
		if got := len(b.Spec.Linux.Resources.Devices) > before; got != added {
			t.Errorf("%s: added %v", rules, got)
		}
		sameSpec(t, b)
	}
}

func TestSaveKeepsTheModeAndLeavesNoOtherFile(t *testing.T) {
	b := load(t, config)
	check(t, os.Chmod(filepath.Join(b.Dir, ConfigName), 0o600))
	check(t, b.Save())
	if info, err := os.Stat(filepath.Join(b.Dir, ConfigName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a configuration that was not edited was written: %v, %v", info.Mode(), err)
	}
	check(t, b.Apply(edits()))
	check(t, b.Save())
	entries, _ := os.ReadDir(b.Dir)
	if len(entries) != 1 {
		t.Errorf("bundle holds %v", entries)
	}
	info, err := os.Stat(filepath.Join(b.Dir, ConfigName))
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	again, err := loadDir(b.Dir)
	if err != nil || len(again.Spec.Mounts) != 2 {
		t.Errorf("saved file reads back as %v, %v", again, err)
	}
}

func TestT51AmbiguousOrHostileConfigurationsAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"a key in another case besides the standard one": `{"mounts": [], "Mounts": []}`,
		"a key in another case alone":                    `{"Mounts": []}`,
		"a key twice":                                    `{"mounts": [], "mounts": []}`,
		"a nested key in another case":                   `{"linux": {"Resources": {"devices": []}}}`,
		"a nested object twice":                          `{"linux": {"devices": []}, "linux": {}}`,
		"another device at the path":                     `{"linux": {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 11}]}}`,
		"devices that are no array":                      `{"linux": {"devices": {}}}`,
		"JSON that ends early":                           `{"linux": {"devices": [`,
	} {
		b, err := Parse("/bundle", []byte(text), 0o600)
		if err == nil {
			err = b.Apply(edits())
		}
		if err == nil || !strings.Contains(err.Error(), ConfigName) && !strings.Contains(err.Error(), "/dev/nvidia0") || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s: error %v, want one that names the file or the device, and no Go type", name, err)
		}
	}
}

func TestT52OnlyARegularFileOfRootIsRead(t *testing.T) {
	for name, change := range map[string]func(file string) error{
		"symbolic link": func(file string) error {
			return errors.Join(os.Rename(file, file+".real"), os.Symlink(file+".real", file))
		},
		"hard link":                            func(file string) error { return os.Link(file, file+".real") },
		"FIFO":                                 func(file string) error { return errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)) },
		"writable by all":                      func(file string) error { return os.Chmod(file, 0o666) },
		"of another owner":                     func(file string) error { return os.Chown(file, 1000, 0) },
		"in a directory that all can write to": func(file string) error { return os.Chmod(filepath.Dir(file), 0o777) },
		"too large": func(file string) error {
			return os.WriteFile(file, append([]byte("{}"), bytes.Repeat([]byte(" "), maxConfig)...), 0)
		},
	} {
		b := load(t, "{}")
		check(t, change(filepath.Join(b.Dir, ConfigName)))
		if _, err := loadDir(b.Dir); err == nil || !strings.Contains(err.Error(), b.Dir) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestRootPath(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "/bundle/rootfs", `{"root": null}`: "/bundle/rootfs", `{"root": {"path": "fs"}}`: "/bundle/fs",
		`{"root": {"path": "/var/fs"}}`: "/var/fs",
	} {
		b, err := Parse("/bundle", []byte(text), 0o600)
		if err != nil || b.RootPath() != want {
			t.Errorf("%s: %v, %v; want %s", text, b.RootPath(), err, want)
		}
	}
}

func FuzzApply(f *testing.F) {
	f.Add([]byte(config))
	f.Add([]byte(`{"linux":{"devices":[{}]},"mounts":null}`))
	f.Add([]byte(`{"hooks":{"prestart":[{"path":"nvidia"}]}}`))
	f.Add([]byte(`{"\u2028":"<&>","linux":{"\ud800":1e999,"resources":{"devices":[{"allow":false,"x":0.10}]}},"mounts":[null,{"x":1,"x":2}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := Parse("/bundle", raw, 0o600)
		if err != nil {
			return
		}
		if err := b.Apply(edits()); err != nil {
			return
		}
		if !json.Valid(b.Raw()) {
			t.Fatalf("not JSON: %s", b.Raw())
		}
		sameSpec(t, b)
		if was, is := decode(t, raw), decode(t, b.Raw()); !reflect.DeepEqual(unedited(was), unedited(is)) {
			t.Fatalf("more was changed than was asked for: %s\nis now %s", raw, b.Raw())
		}
		if !hasDevice(b.Spec.Linux.Devices, edits().Devices[0]) {
			t.Fatalf("the device is missing: %s", b.Raw())
		}
	})
}

// decode decodes JSON, numbers as text. null is an object without members.
func decode(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var v map[string]any
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	check(t, dec.Decode(&v))
	return v
}

// unedited returns a configuration without the arrays that edits changes, and without the objects
// that have nothing else.
func unedited(v map[string]any) map[string]any {
	for _, path := range []string{
		"mounts", "linux.devices", "linux.resources.devices", "linux.resources", "linux", "process.user.additionalGids", "process.user", "process",
		"hooks.prestart", "hooks.createRuntime", "hooks.createContainer", "hooks.startContainer", "hooks.poststart", "hooks.poststop",
	} {
		m, keys := v, strings.Split(path, ".")
		for _, key := range keys[:len(keys)-1] {
			m, _ = m[key].(map[string]any)
		}
		last := keys[len(keys)-1]
		switch x := m[last].(type) {
		case map[string]any:
			if len(x) == 0 {
				delete(m, last)
			}
		case []any, nil:
			delete(m, last)
		}
	}
	return v
}

// loadDir reads and parses the configuration in the bundle dir.
func loadDir(dir string) (*Bundle, error) {
	raw, mode, err := Read(dir)
	if err != nil {
		return nil, err
	}
	return Parse(dir, raw, mode)
}
