package runtimeclass

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// The markers are comments at the beginning of a line. What is between blockBegin
// and blockEnd is ours; a line with switchedOff is the operator's, and comes back.
const (
	blockBegin  = "# >>> nvidia-shim: written by `nvidia-shimctl install`, removed by `nvidia-shimctl uninstall`"
	blockEnd    = "# <<< nvidia-shim"
	switchedOff = "# nvidia-shim was: "
	// The file's last line had no end before the block was appended.
	noNewline = " (no newline before)"
)

// statement is a table header or a key with its value, as whole lines of a file.
type statement struct {
	// path is the full key: the enclosing table's and the statement's own.
	path []string
	// header says that it is a [table] or an [[array of tables]].
	header bool
	// start and end are offsets of the first byte and behind the line's end.
	start, end int
	// keyStart and keyEnd enclose the key as it is written.
	keyStart, keyEnd int
}

// statements lists what a TOML file says and where.
func statements(text []byte) ([]statement, error) {
	var (
		p     unstable.Parser
		out   []statement
		table []string
	)
	p.Reset(text)
	for p.NextExpression() {
		node := p.Expression()
		if node.Kind == unstable.Comment {
			continue
		}
		s := statement{header: node.Kind != unstable.KeyValue, keyStart: -1}
		var path []string
		for it := node.Key(); it.Next(); {
			key := it.Node()
			path = append(path, string(key.Data))
			if s.keyStart < 0 {
				s.keyStart = int(key.Raw.Offset)
			}
			s.keyEnd = int(key.Raw.Offset + key.Raw.Length)
		}
		last := s.keyEnd
		if s.header {
			table = path
			s.path = path
		} else {
			s.path = slices.Concat(table, path)
			last = int(node.Raw.Offset + node.Raw.Length)
		}
		s.start = bytes.LastIndexByte(text[:s.keyStart], '\n') + 1
		s.end = len(text)
		if i := bytes.IndexByte(text[last:], '\n'); i >= 0 {
			s.end = last + i + 1
		}
		out = append(out, s)
	}
	if err := p.Error(); err != nil {
		return nil, err
	}
	return out, nil
}

// splice replaces text[start:end].
type splice struct {
	start, end int
	with       string
}

// apply makes the splices, which do not overlap.
func apply(text []byte, splices []splice) []byte {
	slices.SortStableFunc(splices, func(a, b splice) int { return a.start - b.start })
	var out []byte
	at := 0
	for _, s := range splices {
		out = append(append(out, text[at:s.start]...), s.with...)
		at = s.end
	}
	return append(out, text[at:]...)
}

// block encloses body, whole lines, in our markers.
func block(body string) string { return blockBegin + "\n" + body + blockEnd + "\n" }

// appended is the block that goes to the end of text.
func appended(text []byte, body string) string {
	if len(text) == 0 || text[len(text)-1] == '\n' {
		return block(body)
	}
	return "\n" + strings.Replace(block(body), blockBegin, blockBegin+noNewline, 1)
}

// switchOff turns whole lines into comments that strip brings back.
func switchOff(text []byte) string {
	var b strings.Builder
	for _, l := range lines(text) {
		b.WriteString(switchedOff + l)
	}
	return b.String()
}

// strip removes what an earlier installation put into a text, and gives the lines
// back that it switched off. It is the exact inverse of the splices of this package,
// whatever else has been changed around them. nil stays nil.
func strip(text []byte) ([]byte, error) {
	if text == nil {
		return nil, nil
	}
	out := []byte{}
	inside := false
	for _, l := range lines(text) {
		bare := strings.TrimRight(l, "\r\n")
		switch {
		case !inside && strings.HasPrefix(bare, blockBegin):
			inside = true
			if strings.HasSuffix(bare, noNewline) {
				out = bytes.TrimSuffix(out, []byte("\n"))
			}
		case inside && bare == blockEnd:
			inside = false
		case inside:
		case strings.HasPrefix(l, switchedOff):
			out = append(out, strings.TrimPrefix(l, switchedOff)...)
		default:
			out = append(out, l...)
		}
	}
	if inside {
		return nil, fmt.Errorf("the line %q has no %q behind it: put it back, or remove our lines by hand", blockBegin, blockEnd)
	}
	return out, nil
}

// decode reads TOML into maps.
func decode(text []byte) (map[string]any, error) {
	m := map[string]any{}
	if err := toml.Unmarshal(text, &m); err != nil {
		return nil, err
	}
	return m, nil
}

// hasPrefix tells whether path is base or below it.
func hasPrefix(path, base []string) bool {
	return len(path) >= len(base) && slices.Equal(path[:len(base)], base)
}

// lookup descends into tables. It returns nil where there is nothing.
func lookup(m map[string]any, path ...string) any {
	var v any = m
	for _, key := range path {
		t, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = t[key]
	}
	return v
}

// table is lookup for tables; an absent one is nil, which can be read.
func table(m map[string]any, path ...string) map[string]any {
	t, _ := lookup(m, path...).(map[string]any)
	return t
}

// put sets a value, making the tables on the way.
func put(m map[string]any, value any, path ...string) {
	for _, key := range path[:len(path)-1] {
		next, ok := m[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[key] = next
		}
		m = next
	}
	m[path[len(path)-1]] = value
}

// merge puts from over to, table by table, as containerd 2.1 and later do with imports.
func merge(to, from map[string]any) {
	for k, v := range from {
		if sub, ok := v.(map[string]any); ok {
			if old, ok := to[k].(map[string]any); ok {
				merge(old, sub)
				continue
			}
			fresh := map[string]any{}
			merge(fresh, sub)
			v = fresh
		}
		to[k] = v
	}
}
