package cmdline

import (
	"fmt"
	"os"
	"regexp"
)

// Error describes what is wrong with a command line.
type Error struct{ text string }

// Errorf formats an Error.
func Errorf(format string, args ...any) error { return Error{fmt.Sprintf(format, args...)} }

func (e Error) Error() string { return e.text }

var descriptor = regexp.MustCompile(`/proc/self/fd/\d+`)

// Plain returns the text of an error. It has the files that open descriptors lead to in place of
// their paths in /proc, by which a command in another root reaches its own files.
func Plain(err error) string {
	return descriptor.ReplaceAllStringFunc(err.Error(), func(path string) string {
		if real, err := os.Readlink(path); err == nil {
			return real
		}
		return path
	})
}
