package bounded

import "strings"

// Buffer keeps at most Most bytes. It has no method of a bytes.Buffer but Write:
// io.Copy would use ReadFrom of an embedded one, which knows no bound.
type Buffer struct {
	Most int
	// Kept are the writes before the first that was too much.
	Kept []byte
	// TooLong says that something was dropped.
	TooLong bool
}

// Write never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	if b.TooLong = b.TooLong || len(b.Kept)+len(p) > b.Most; !b.TooLong {
		b.Kept = append(b.Kept, p...)
	}
	return len(p), nil
}

// FirstLine is what a program complains about, less its name, in at most 1024 bytes.
func (b *Buffer) FirstLine(program string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b.Kept)), "\n")
	return strings.TrimPrefix(line[:min(len(line), 1024)], program+": ")
}
