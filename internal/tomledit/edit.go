package tomledit

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// The markers are comments at the beginning of a line. The lines between blockBegin and blockEnd
// are ours; a line that begins with SwitchedOff is the operator's, and Strip restores it.
const (
	blockBegin  = "# >>> nvidia-shim: written by `nvidia-shimctl install`, removed by `nvidia-shimctl uninstall`"
	blockEnd    = "# <<< nvidia-shim"
	SwitchedOff = "# nvidia-shim was: "
)

// Block encloses body, whole lines, in our markers.
func Block(body string) string { return blockBegin + "\n" + body + blockEnd + "\n" }

// WithLineEnd terminates the last line of a text, so that lines can follow.
func WithLineEnd(text []byte) []byte {
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		return slices.Concat(text, []byte("\n"))
	}
	return text
}

// Strip removes the lines that an installation added to a text and restores those that it switched
// off. Only a newline at the end of the last line may remain. nil stays nil.
func Strip(text []byte) ([]byte, error) {
	if text == nil {
		return nil, nil
	}
	out := []byte{}
	inside := false
	for line := range bytes.Lines(text) {
		bare := string(bytes.TrimRight(line, "\r\n"))
		switch {
		case inside:
			inside = bare != blockEnd
		case strings.HasPrefix(bare, blockBegin):
			inside = true
		default:
			out = append(out, bytes.TrimPrefix(line, []byte(SwitchedOff))...)
		}
	}
	if inside {
		return nil, fmt.Errorf("the line %q has no %q after it: put it back, or remove our lines by hand", blockBegin, blockEnd)
	}
	return out, nil
}

// OwnLines returns our lines.
func OwnLines(text []byte) (ours []byte) {
	inside := false
	for line := range bytes.Lines(text) {
		switch {
		case bytes.HasPrefix(line, []byte(blockBegin)):
			inside = true
		case bytes.HasPrefix(line, []byte(blockEnd)):
			inside = false
		case inside:
			ours = append(ours, line...)
		}
	}
	return ours
}

// SwitchOff turns a table, and the tables below it, into comments.
func SwitchOff(text []byte, path []string) []byte {
	var out []byte
	var current []string
	for line := range bytes.Lines(text) {
		if header := tableHeader(line); header != nil {
			current = header
		}
		if len(current) >= len(path) && slices.Equal(current[:len(path)], path) {
			out = append(out, SwitchedOff...)
		}
		out = append(out, line...)
	}
	return out
}

// RemoveTable removes a table and the tables below it.
func RemoveTable(text []byte, path []string) []byte {
	var out []byte
	for line := range bytes.Lines(SwitchOff(text, path)) {
		if !bytes.HasPrefix(line, []byte(SwitchedOff)) {
			out = append(out, line...)
		}
	}
	return out
}

// Remove removes a key below the header of a table.
func Remove(text []byte, path []string, key string) []byte {
	var out []byte
	var current []string
	for line := range bytes.Lines(text) {
		if header := tableHeader(line); header != nil {
			current = header
		}
		if m, err := Decode(line); slices.Equal(current, path) && err == nil && m[key] != nil {
			continue
		}
		out = append(out, line...)
	}
	return out
}

// Set sets a key below the header of a table, in place of an existing one. It reports whether the
// header exists.
func Set(text []byte, path []string, key, value string) (out []byte, found bool) {
	var current []string
	for line := range bytes.Lines(text) {
		header := tableHeader(line)
		if header != nil {
			current = header
		}
		inside := slices.Equal(current, path)
		if m, err := Decode(line); inside && err == nil && m[key] != nil {
			out = append(out, SwitchedOff...)
		}
		out = append(out, line...)
		if inside && header != nil {
			found = true
			out = append(out, Block(fmt.Sprintf("  %s = %q\n", key, value))...)
		}
	}
	return out, found
}

// tableHeader returns the path of the table if the line is a table header; nil for other lines.
func tableHeader(line []byte) []string {
	if !bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("[")) {
		return nil
	}
	m, err := Decode(line)
	if err != nil {
		return nil
	}
	var path []string
	for len(m) > 0 {
		for key := range m {
			path, m = append(path, key), Table(m, key)
		}
	}
	return path
}

// Check returns an error unless text has exactly the content of tables and added. It merges added
// into tables.
func Check(text []byte, tables map[string]any, added string) error {
	more, err := Decode([]byte(added))
	if err != nil {
		return err
	}
	Merge(tables, more)
	got, err := Decode(text)
	if err == nil && !reflect.DeepEqual(got, tables) {
		err = errors.New("the edited file would not hold the changes")
	}
	return err
}
