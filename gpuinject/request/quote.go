package request

import "fmt"

// maxQuoted is how many bytes of a user's value an error repeats (T47).
const maxQuoted = 256

// Quote returns a user's value for an error or a log line: quoted, so that control characters and
// line breaks are escaped, and cut at 256 bytes (T47).
func Quote(s string) string {
	if len(s) > maxQuoted { // guard: messages: values cut
		return fmt.Sprintf("%q…", s[:maxQuoted])
	}
	return fmt.Sprintf("%q", s)
}
