package docs

import (
	"regexp"
	"strings"
	"testing"
)

var (
	// command is a command line of nvidia-shimctl up to a pipe, a comment or another program.
	command = regexp.MustCompile("(?m)(?:^|[`#$(/] ?)nvidia-shimctl(?: --config [^ `]+)? ([a-z][a-z-]*)([^|#>`)\n]*)")
	flag    = regexp.MustCompile(`(?:^|\s)(--[a-z][a-z-]*)`)
)

// The commands of docs/shimctl.md are made from the command line itself. What the pages tell people
// to type is among them.
func TestCommandsAndFlagsExist(t *testing.T) {
	sections := map[string]string{}
	for _, part := range strings.Split(page(t, "docs/shimctl.md"), "\n### ")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		sections[name] = text
	}
	sections["completion"], sections["man"] = "", "" // the library's own, and hidden
	typed := 0
	for name, text := range pages(t) {
		text, _, _ = strings.Cut(text, "<!-- begin commands -->")
		for _, block := range append(block.FindAllString(text, -1), inline.FindAllString(withoutBlocks(text), -1)...) {
			for _, m := range command.FindAllStringSubmatch(block, -1) {
				section, ok := sections[m[1]]
				if !ok {
					t.Errorf("%s: nvidia-shimctl has no command %s", name, m[1])
					continue
				}
				typed++
				for _, f := range flag.FindAllStringSubmatch(m[2], -1) {
					if f[1] != "--json" && !strings.Contains(section, "`"+f[1]+"`") {
						t.Errorf("%s: nvidia-shimctl %s has no flag %s", name, m[1], f[1])
					}
				}
			}
		}
	}
	if typed == 0 {
		t.Error("no page has a command: the test looks for the wrong thing")
	}
}
