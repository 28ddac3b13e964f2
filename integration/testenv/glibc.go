package testenv

import (
	"debug/elf"
	"fmt"
	"testing"
)

// RunsWithGlibc234 checks that a dynamic program needs nothing newer than glibc 2.34.
func RunsWithGlibc234(t testing.TB, program string) {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	needs, err := f.DynamicVersionNeeds()
	if err != nil || len(needs) == 0 {
		t.Fatalf("%s needs %v, %v", program, needs, err)
	}
	for _, library := range needs {
		for _, version := range library.Needs {
			var major, minor int
			if _, err := fmt.Sscanf(version.Dep, "GLIBC_%d.%d", &major, &minor); err != nil || major != 2 || minor > 34 {
				t.Errorf("%s needs %s of %s", program, version.Dep, library.Name)
			}
		}
	}
}
