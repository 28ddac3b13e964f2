package cmdline

import "fmt"

// Error describes what is wrong with a command line.
type Error struct{ text string }

// Errorf formats an Error.
func Errorf(format string, args ...any) error { return Error{fmt.Sprintf(format, args...)} }

func (e Error) Error() string { return e.text }
