package request

import "fmt"

// maxQuoted is how much of a user's value an error repeats, in bytes (T47).
const maxQuoted = 256

// Quote repeats a user's value in an error or a log line: quoted, so that control characters and
// line breaks show as escapes, and cut at 256 bytes (T47).
func Quote(s string) string {
	if len(s) > maxQuoted {
		return fmt.Sprintf("%q…", s[:maxQuoted])
	}
	return fmt.Sprintf("%q", s)
}
