package health

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

var check = testtree.Check

var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func sick() File {
	return File{Boot: BootID(), Driver: "580.1", Time: now, GPUs: []GPU{
		{PCI: "0000:01:00.0", State: OK},
		{PCI: "0000:C1:00.0", State: Refuse, Reason: "Xid 79", Fix: "reboot", Since: now},
		{PCI: "0000:02:00.0", State: "of a later version"},
	}}
}

func TestAFileIsReadBack(t *testing.T) {
	dir := t.TempDir()
	check(t, Write(dir, sick()))
	info, err := os.Stat(filepath.Join(dir, Name))
	check(t, err)
	if info.Mode() != 0o644 {
		t.Errorf("mode %o", info.Mode())
	}
	f, err := Read(dir, "580.1", now.Add(Interval))
	check(t, err)
	if g, ok := f.GPU("0000:c1:00.0"); !ok || g.String() != "unhealthy since 2026-11-28 12:00:00: Xid 79: reboot" {
		t.Errorf("%+v", f)
	}
	for _, pci := range []string{"0000:01:00.0", "0000:02:00.0", "0000:03:00.0", ""} {
		if g, ok := f.GPU(pci); ok {
			t.Errorf("%q is sick: %+v", pci, g)
		}
	}
}

func TestAFileThatDoesNotCount(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(f *File)
		at     time.Duration
		err    string
	}{
		"of long ago":           {at: Valid + time.Second, err: "nothing watches"},
		"of the future":         {at: -Valid - time.Second, err: "nothing watches"},
		"without a time":        {change: func(f *File) { f.Time = time.Time{} }, err: "nothing watches"},
		"of another driver":     {change: func(f *File) { f.Driver = "570.1" }, err: "of driver \"570.1\""},
		"of another boot":       {change: func(f *File) { f.Boot = "another" }, err: "another boot"},
		"healthy, another boot": {change: func(f *File) { f.Boot, f.GPUs = "another", f.GPUs[:1] }},
	} {
		t.Run(name, func(t *testing.T) {
			f, dir := sick(), t.TempDir()
			if tc.change != nil {
				tc.change(&f)
			}
			check(t, Write(dir, f))
			f, err := Read(dir, "580.1", now.Add(tc.at))
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("%v, want %q", err, tc.err)
			}
			if _, ok := f.GPU("0000:c1:00.0"); ok {
				t.Errorf("%+v", f)
			}
		})
	}
}

// What is not the watcher's file says nothing, at a bounded cost.
func TestAFileThatIsNotTheWatchers(t *testing.T) {
	if f, err := Read(t.TempDir(), "580.1", now); err != nil || len(f.GPUs) > 0 {
		t.Errorf("no file: %+v, %v", f, err)
	}
	for name, put := range map[string]func(file string) error{
		"empty":         func(file string) error { return os.WriteFile(file, nil, 0o644) },
		"no JSON":       func(file string) error { return os.WriteFile(file, []byte("\x00garbage"), 0o644) },
		"another shape": func(file string) error { return os.WriteFile(file, []byte(`{"gpus":"all"}`), 0o644) },
		"huge":          func(file string) error { return os.WriteFile(file, make([]byte, maxSize+1), 0o644) },
		"a directory":   func(file string) error { return os.Mkdir(file, 0o755) },
		"a link":        func(file string) error { return os.Symlink("/etc/hostname", file) },
		"another user's": func(file string) error {
			if err := os.WriteFile(file, []byte("{}"), 0o644); err != nil {
				return err
			}
			return os.Chown(file, 1000, 1000)
		},
	} {
		dir := t.TempDir()
		check(t, put(filepath.Join(dir, Name)))
		if f, err := Read(dir, "580.1", now); err == nil || len(f.GPUs) > 0 {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

// FuzzRead takes any bytes as the file.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"boot":"b","driver":"580.1","time":"2026-11-28T12:00:00Z","gpus":[{"pci":"0000:01:00.0","state":"refuse","reason":"x"}]}`))
	f.Add([]byte(`{"gpus":[{"pci":null,"since":"9999-12-31T23:59:60Z","xids":[{}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		check(t, os.WriteFile(filepath.Join(dir, Name), data, 0o644))
		got, _ := Read(dir, "580.1", now)
		for _, g := range got.GPUs {
			if s, ok := got.GPU(g.PCI); ok && len(s.String()) > 1000 {
				t.Errorf("%d bytes", len(s.String()))
			}
		}
	})
}
