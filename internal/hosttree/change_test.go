package hosttree

import (
	"os"
	"strings"
	"testing"
)

// Files are written by way of a descriptor, of which no message speaks.
func TestAnErrorNamesTheFile(t *testing.T) {
	tree := Tree{Root: t.TempDir()}
	long := "/etc/" + strings.Repeat("x", 250) // with the suffix of a temporary file it is too long
	for _, kind := range []Kind{OtherFile, Program, Record} {
		err := tree.Apply(Change{Kind: kind, Path: long, After: []byte("x")})
		if err == nil || !strings.Contains(err.Error(), tree.Root+"/etc/xxx") || strings.Contains(err.Error(), "/proc/") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if err := os.Mkdir(tree.Real("/etc/dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tree.ReadRegular("/etc/dir", 1); err == nil || strings.Contains(err.Error(), "/proc/") {
		t.Error(err)
	}
}
