package cmdline

import (
	"fmt"
	"os"
	"testing"
)

func TestPlainNamesTheFileOfADescriptor(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for text, want := range map[string]string{
		fmt.Sprintf("open /proc/self/fd/%d/token: no such file", f.Fd()): "open " + dir + "/token: no such file",
		"read /proc/self/fd/99999: closed":                               "read /proc/self/fd/99999: closed",
		"/proc/self/mountinfo":                                           "/proc/self/mountinfo",
	} {
		if got := Plain(fmt.Errorf("%s", text)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
