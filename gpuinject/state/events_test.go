package state

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEventsAreReadOnce(t *testing.T) {
	s := open(t)
	e := Events{Dir: s.Dir()}
	if got, all := e.Next(); len(got) != 0 || !all {
		t.Errorf("without a file: %v, %v", got, all)
	}
	s.AddEvent(Event{Kind: Refused, Class: "denied", Reason: strings.Repeat("é", 1000), Who: "team/pod"})
	s.AddEvent(Event{Kind: Created, GPU: true, Seconds: 0.0123456789, OwnSeconds: 0.0012345678})
	got, _ := e.Next()
	if len(got) != 2 || got[0].Reason != strings.Repeat("é", 128)+"…" || got[0].Who != "team/pod" || got[1].Kind != Created || got[1].Time.IsZero() {
		t.Errorf("%+v", got)
	}
	if got, _ := e.Next(); len(got) != 0 {
		t.Errorf("again %+v", got)
	}
	data, err := os.ReadFile(filepath.Join(s.Dir(), eventsName))
	check(t, err)
	if lines := strings.SplitAfter(string(data), "\n"); len(lines[1]) >= 200 {
		t.Errorf("a creation takes %d bytes", len(lines[1]))
	}
	// Next may look for a file while it gets its other name.
	name := filepath.Join(s.Dir(), eventsName)
	check(t, os.Rename(name, name+".moving"))
	if got, _ := e.Next(); len(got) != 0 {
		t.Errorf("without the file %+v", got)
	}
	check(t, os.Rename(name+".moving", name))
	if got, _ := e.Next(); len(got) != 0 {
		t.Errorf("counted twice: %+v", got)
	}
	// An incomplete line is read when it is complete.
	f, err := os.OpenFile(filepath.Join(s.Dir(), eventsName), os.O_WRONLY|os.O_APPEND, 0)
	check(t, err)
	defer f.Close()
	_, err = f.WriteString(`{"kind":`)
	check(t, err)
	if got, _ := e.Next(); len(got) != 0 {
		t.Errorf("half a line: %v", got)
	}
	_, err = f.WriteString("\"created\"}\nnot JSON\n")
	check(t, err)
	if got, _ := e.Next(); len(got) != 1 || got[0].Kind != Created {
		t.Errorf("%v", got)
	}
}

// There are at most two files, and concurrent writers lose or tear no event.
func TestEventsAreBounded(t *testing.T) {
	defer func(n int64) { maxEvents = n }(maxEvents)
	maxEvents = 20_000
	s := open(t)
	e := Events{Dir: s.Dir()}
	seen := 0
	for range 10 {
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				for range 20 {
					s.AddEvent(Event{Kind: Refused, Reason: "because"})
				}
			})
		}
		group.Wait()
		got, _ := e.Next()
		seen += len(got)
	}
	if seen != 800 {
		t.Errorf("%d of 800 events", seen)
	}
	var size int64
	files, err := filepath.Glob(filepath.Join(s.Dir(), eventsName+"*"))
	check(t, err)
	for _, name := range files {
		info, err := os.Stat(name)
		check(t, err)
		size += info.Size()
	}
	if len(files) != 2 || size > 3*maxEvents {
		t.Errorf("%q have %d bytes", files, size)
	}
	if _, all := (&Events{Dir: s.Dir()}).Next(); all {
		t.Error("a new reader does not know that there were earlier events")
	}
}

// Another process can hold the lock for ever, and the file be something else.
func TestEventsNeverFailTheirCaller(t *testing.T) {
	defer func(n int64) { maxEvents = n }(maxEvents)
	maxEvents = 1000
	s := open(t)
	lock, err := s.Lock("events.lock", 0)
	check(t, err)
	defer lock.Close()
	name := filepath.Join(s.Dir(), eventsName)
	for range 100 {
		s.AddEvent(Event{Kind: Created})
	}
	if info, err := os.Stat(name); err != nil || info.Size() > 3*maxEvents {
		t.Errorf("%v, %v", info, err)
	}
	for what, instead := range map[string]func() error{
		"a FIFO":      func() error { return unix.Mkfifo(name, 0o600) },
		"a directory": func() error { return os.Mkdir(name, 0o700) },
		"a link":      func() error { return os.Symlink("elsewhere", name) },
	} {
		check(t, os.RemoveAll(name))
		check(t, instead())
		s.AddEvent(Event{Kind: Created})
		if got, _ := (&Events{Dir: s.Dir()}).Next(); len(got) != 0 {
			t.Errorf("%s: %v", what, got)
		}
	}
	if _, err := os.Lstat(filepath.Join(s.Dir(), "elsewhere")); err == nil {
		t.Error("a link was followed")
	}
	readOnly, err := Open(t.TempDir(), true)
	check(t, err)
	readOnly.AddEvent(Event{Kind: Created})
	if entries, err := os.ReadDir(readOnly.Dir()); err != nil || len(entries) > 0 {
		t.Error("a read-only state was written")
	}
}

func BenchmarkAddEvent(b *testing.B) {
	s, err := Open(filepath.Join(b.TempDir(), "state"), false)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s.AddEvent(Event{Kind: Created, GPU: true, Seconds: 0.0123456789})
	}
}

// FuzzEvents takes any bytes as the file, which is read while it is written: each event is read once.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("{\"kind\":\"created\",\"gpu\":true}\n{\"kind\":"), []byte("\"refused\"}\n"))
	f.Add([]byte("\n\x00\n[]\nnull\n{\"seconds\":1e999}\n"), []byte("{}"))
	name := filepath.Join(f.TempDir(), eventsName)
	f.Fuzz(func(t *testing.T, first, rest []byte) {
		e := Events{Dir: filepath.Dir(name)}
		count := 0
		for _, text := range [][]byte{first, slices.Concat(first, rest), slices.Concat(first, rest, []byte("\n"))} {
			if err := os.WriteFile(name, text, 0o600); err != nil {
				t.Fatal(err)
			}
			got, _ := e.Next()
			count += len(got)
		}
		if all, _ := (&Events{Dir: e.Dir}).Next(); len(all) != count {
			t.Errorf("%d events at once, %d one after the other", len(all), count)
		}
	})
}
