package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// CompileCount compiles the program integration/gpu/programs/count.c, which counts in GPU memory.
func CompileCount(t testing.TB, path string) {
	t.Helper()
	if out, err := exec.Command("gcc", "-O2", "-o", path, "../gpu/programs/count.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
}

// Passed returns how often the count program that writes to this file has checked all of its GPU
// memory.
func Passed(t testing.TB, file string) (n int) {
	t.Helper()
	data, _ := os.ReadFile(file)
	lines := bytes.Split(data, []byte("\n"))
	if len(lines) < 2 { // the last one is not complete
		return 0
	}
	if _, err := fmt.Sscanf(string(lines[len(lines)-2]), "passed %d", &n); err != nil {
		t.Fatalf("%s: %s", file, lines[len(lines)-2])
	}
	return n
}

// AwaitCount waits until each of the count programs that write to these files has passed twice more.
func AwaitCount(t testing.TB, files ...string) {
	t.Helper()
	for _, file := range files {
		from := Passed(t, file)
		Await(t, file+" counts", func() bool { return Passed(t, file) >= from+2 })
	}
}
