package testenv

import (
	"os"
	"path/filepath"
	"testing"
)

// The first process that leaves changes nothing; the last restores what the first found.
func TestTheLastTestProcessRestoresTheHost(t *testing.T) {
	dir := t.TempDir()
	was := notes
	notes = filepath.Join(dir, "notes")
	defer func() { notes = was }()
	made, inner, there := filepath.Join(dir, "made"), filepath.Join(dir, "made", "inner"), filepath.Join(dir, "there")
	setting := filepath.Join(dir, "setting")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(content string, madeLeft bool) {
		t.Helper()
		text, err := os.ReadFile(setting)
		_, errMade := os.Stat(inner)
		_, errThere := os.Stat(there)
		if string(text) != content || err != nil || (errMade == nil) != madeLeft || errThere != nil {
			t.Errorf("the setting is %q, %v; the directories: %v, %v", text, err, errMade, errThere)
		}
	}
	check(os.Mkdir(there, 0o755))
	check(os.WriteFile(setting, []byte("1\n"), 0o644))
	first, err := Share([]string{there, made, inner}, []string{setting})
	check(err)
	check(os.WriteFile(setting, []byte("2\n"), 0o644))
	second, err := Share([]string{there, made, inner}, []string{setting})
	check(err)
	check(first())
	want("2\n", true)
	check(second())
	want("1\n", false)
	if _, err := os.Stat(notes); err == nil {
		t.Error("the notes are still there")
	}
}
