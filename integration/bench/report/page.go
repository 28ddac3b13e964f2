package report

import (
	"errors"
	"io/fs"
	"os"
	"strings"
)

// WritePart puts text into the page file as its generated part; writer is what wrote it.
func WritePart(file, part, writer, text string) error {
	page, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(file, []byte(replacePart(string(page), part, writer, text)), 0o644)
}

// replacePart replaces what is between the part's markers, or appends the part to a
// page that has none.
func replacePart(page, part, writer, text string) string {
	begin := "<!-- begin " + part + ": written by " + writer + ", do not edit -->\n"
	end := "<!-- end " + part + " -->\n"
	before, rest, found := strings.Cut(page, begin)
	if found {
		if _, after, closed := strings.Cut(rest, end); closed {
			return before + begin + "\n" + text + "\n" + end + after
		}
	}
	if page != "" && !strings.HasSuffix(page, "\n") {
		page += "\n"
	}
	return page + begin + "\n" + text + "\n" + end
}
