package testtree

import (
	"debug/elf"
	"os"
	"strings"
)

// Unpack makes the files and links of the packages that a list names, after
// gpuinject/host/driver/testdata/debian.sh: "NAME", "NAME -> TARGET" or, for a library,
// "NAME = SONAME". It returns the driver's version, from the first line, and the names of the files,
// whose contents are not the packages'.
func (r Root) Unpack(list string, machine elf.Machine) (version string, names []string) {
	r.Helper()
	text, err := os.ReadFile(list)
	r.Check(err)
	head, lines, _ := strings.Cut(string(text), "\n")
	_, version, _ = strings.Cut(head, ", driver ")
	for line := range strings.Lines(lines) {
		name, soname, isLibrary := strings.Cut(strings.TrimRight(line, "\n"), " = ")
		link, target, isLink := strings.Cut(name, " -> ")
		switch {
		case isLink:
			r.Link(link, target)
			continue
		case isLibrary:
			r.Write(name, Library(elf.ELFCLASS64, machine, soname))
		default:
			r.Write(name, "{}")
		}
		names = append(names, name)
	}
	return version, names
}
