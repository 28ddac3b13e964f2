package runtimeclass

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// yamlParser reads the part of YAML 1.2 that this package writes, and refuses the
// rest: block mappings and sequences, plain scalars of harmless characters,
// double-quoted scalars of JSON, literal blocks with "|-", and comments on lines of
// their own. Scalars are strings; no parser of all of YAML is among the dependencies.
type yamlParser struct {
	lines []string
	at    int
}

var (
	yamlKey   = regexp.MustCompile(`^("(?:[^"\\]|\\.)*"|[A-Za-z][A-Za-z0-9_.-]*):(?: (.*))?$`)
	yamlPlain = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9_./-]*$`)
)

func parseYAML(text string) (any, error) {
	if !strings.HasSuffix(text, "\n") {
		return nil, fmt.Errorf("the last line has no end")
	}
	p := &yamlParser{lines: strings.Split(strings.TrimSuffix(text, "\n"), "\n")}
	v, err := p.node(0)
	if err == nil && p.at < len(p.lines) {
		err = fmt.Errorf("what is it?")
	}
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", p.at+1, err)
	}
	return v, nil
}

// next is the indentation of the next line that is no comment, and the line without it.
func (p *yamlParser) next() (indent int, line string, ok bool) {
	for ; p.at < len(p.lines); p.at++ {
		line = strings.TrimLeft(p.lines[p.at], " ")
		if !strings.HasPrefix(line, "#") {
			return len(p.lines[p.at]) - len(line), line, true
		}
	}
	return 0, "", false
}

// node reads the mapping or sequence at exactly that indentation.
func (p *yamlParser) node(indent int) (any, error) {
	in, line, ok := p.next()
	switch {
	case !ok || in != indent:
		return nil, fmt.Errorf("a value is missing at column %d", indent+1)
	case line == "" || strings.TrimRight(line, " \t") != line || strings.Contains(line, "\t"):
		return nil, fmt.Errorf("an empty line, a tab or space at the end")
	case strings.HasPrefix(line, "- "):
		return p.sequence(indent)
	}
	return p.mapping(indent)
}

func (p *yamlParser) sequence(indent int) (any, error) {
	var out []any
	for {
		in, line, ok := p.next()
		if !ok || in != indent || !strings.HasPrefix(line, "- ") {
			return out, nil
		}
		var v any
		var err error
		rest := strings.TrimPrefix(line, "- ")
		if yamlKey.MatchString(rest) {
			// A mapping that begins on the line of its dash.
			p.lines[p.at] = strings.Repeat(" ", indent+2) + rest
			v, err = p.mapping(indent + 2)
		} else {
			p.at++
			v, err = p.scalar(rest, indent)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
}

func (p *yamlParser) mapping(indent int) (any, error) {
	out := map[string]any{}
	for {
		in, line, ok := p.next()
		if !ok || in < indent || in == indent && strings.HasPrefix(line, "- ") {
			return out, nil
		}
		m := yamlKey.FindStringSubmatch(line)
		if in != indent || m == nil {
			return nil, fmt.Errorf("%q at column %d is no key of column %d", line, in+1, indent+1)
		}
		key := m[1]
		if strings.HasPrefix(key, `"`) {
			if err := json.Unmarshal([]byte(key), &key); err != nil {
				return nil, err
			}
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("key %q is there twice", key)
		}
		p.at++
		var err error
		if m[2] != "" {
			out[key], err = p.scalar(m[2], indent)
		} else {
			// A sequence may be as far left as its key.
			below, next, ok := p.next()
			if !ok || below < indent || below == indent && !strings.HasPrefix(next, "- ") {
				return nil, fmt.Errorf("key %q has no value", key)
			}
			out[key], err = p.node(below)
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *yamlParser) scalar(text string, indent int) (string, error) {
	switch {
	case text == "|-":
		return p.literal(indent)
	case strings.HasPrefix(text, `"`):
		var s string
		err := json.Unmarshal([]byte(text), &s)
		return s, err
	case yamlPlain.MatchString(text):
		return text, nil
	}
	p.at--
	return "", fmt.Errorf("%q is no plain scalar", text)
}

// literal reads the lines that are further right than its parent.
func (p *yamlParser) literal(parent int) (string, error) {
	var out []string
	indent := 0
	for ; p.at < len(p.lines); p.at++ {
		line := p.lines[p.at]
		in := len(line) - len(strings.TrimLeft(line, " "))
		if indent == 0 {
			indent = in
		}
		if in <= parent || in < indent {
			break
		}
		out = append(out, line[indent:])
	}
	if len(out) == 0 {
		return "", fmt.Errorf("an empty block")
	}
	return strings.Join(out, "\n"), nil
}

// The proof that the parser refuses what would go wrong with a real one.
func TestYAMLIsReadStrictly(t *testing.T) {
	for text, want := range map[string]any{
		"a: b\nc:\n- d: \"e: #\"\n  f:\n    g: h\n# x\n- |-\n  i = 1\n    j\n": map[string]any{"a": "b", "c": []any{map[string]any{"d": "e: #", "f": map[string]any{"g": "h"}}, "i = 1\n  j"}},
		"\"a b\": c\n":        map[string]any{"a b": "c"},
		"a: b: c\n":           nil,
		"a: #b\n":             nil,
		"a: [b]\n":            nil,
		"a:\tb\n":             nil,
		"a:\n  b: c\n d: e":   nil,
		"a:\n  b: c\n d: e\n": nil,
		"a: b\na: c\n":        nil,
		"a:\nb: c\n":          nil,
		"a: b \n":             nil,
		"a: 'b'\n":            nil,
		"- a\nb: c\n":         nil,
		"a: \"b\" c\n":        nil,
		"a: |-\nb: c\n":       nil,
	} {
		got, err := parseYAML(text)
		if (err != nil) != (want == nil) || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %v %v, want %v", text, got, err, want)
		}
	}
}
