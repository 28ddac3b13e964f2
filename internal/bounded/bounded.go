package bounded

import "strings"

// Buffer keeps at most Most bytes. Write is its only method of a bytes.Buffer: io.Copy would call
// ReadFrom of an embedded one, which has no bound.
type Buffer struct {
	Most int
	// Kept holds the writes before the first that exceeded the bound.
	Kept []byte
	// TooLong reports whether something was dropped.
	TooLong bool
}

// Write never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	if b.TooLong = b.TooLong || len(b.Kept)+len(p) > b.Most; !b.TooLong {
		b.Kept = append(b.Kept, p...)
	}
	return len(p), nil
}

// FirstLine returns the first line without the program's name, in at most 1024 bytes: its error
// message.
func (b *Buffer) FirstLine(program string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b.Kept)), "\n")
	return strings.TrimPrefix(line[:min(len(line), 1024)], program+": ")
}
