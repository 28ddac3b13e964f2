package tomledit

import (
	"errors"
	"testing"
)

const original = `# mine
[plugins.a]
  name = "x" # kept
[plugins.a.runtimes.nvidia]
  path = "/x"
  [plugins.a.runtimes.nvidia.options]
    b = 1
[plugins.c]
  name = "x"`

// A key is set, a table is switched off and lines are added, and Strip undoes all of it.
func TestAnEditIsTakenBack(t *testing.T) {
	before, err := Decode([]byte(original))
	text := SwitchOff(WithLineEnd([]byte(original)), []string{"plugins", "a", "runtimes", "nvidia"})
	text, found := Set(text, []string{"plugins", "a"}, "name", "y")
	text = append(text, Block("[plugins.d]\n  name = \"z\"\n")...)
	after, failed := Decode(text)
	if err := errors.Join(err, failed); err != nil || !found {
		t.Fatalf("%v, found %v:\n%s", err, found, text)
	}
	if got := Table(after, "plugins", "a"); got["name"] != "y" || got["runtimes"] != nil || Table(after, "plugins", "c")["name"] != "x" || Table(after, "plugins", "d")["name"] != "z" {
		t.Errorf("%v", after)
	}
	delete(Table(before, "plugins", "a"), "runtimes")
	if err := Check(text, before, "[plugins.a]\nname = \"y\"\n[plugins.d]\nname = \"z\"\n"); err != nil {
		t.Error(err)
	}
	if err := Check([]byte(original), before, ""); err == nil {
		t.Error("a text that says something else is accepted")
	}
	if got, err := Strip(text); err != nil || string(got) != original+"\n" {
		t.Errorf("%v:\n%s", err, got)
	}
	if _, found := Set([]byte(original), []string{"plugins", "e"}, "name", "y"); found {
		t.Error("a table was found that is not there")
	}
}
