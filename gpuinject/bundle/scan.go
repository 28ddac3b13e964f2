package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
)

// The functions here find their way through JSON by strings and brackets alone, at
// ten times the speed of a decoder: nine tenths of a configuration are a seccomp
// profile that nobody here looks at. They never panic, but notice few errors, so what
// is edited was checked by encoding/json first.

var errNotAnObject = errors.New("is not a JSON object")

// span is a part of a text: text[start:end].
type span struct{ start, end int }

func (s span) of(raw []byte) []byte { return raw[s.start:s.end] }

// eachMember calls fn for every member of the object raw, until fn says stop.
func eachMember(raw []byte, fn func(key string, value span) (stop bool)) error {
	i := skipSpace(raw, 0)
	if at(raw, i) != '{' {
		return errNotAnObject
	}
	i = skipSpace(raw, i+1)
	for at(raw, i) != '}' {
		key := span{i, stringEnd(raw, i)}
		if key.end < 0 {
			return errNotAnObject
		}
		if i = skipSpace(raw, key.end); at(raw, i) != ':' {
			return errNotAnObject
		}
		value := span{start: skipSpace(raw, i+1)}
		if value.end = valueEnd(raw, value.start); value.end < 0 {
			return errNotAnObject
		}
		name, err := unquote(key.of(raw))
		if err != nil {
			return err
		}
		if fn(name, value) {
			return nil
		}
		switch i = skipSpace(raw, value.end); at(raw, i) {
		case ',':
			i = skipSpace(raw, i+1)
		case '}':
		default:
			return errNotAnObject
		}
	}
	return nil
}

// elements cuts an array into its elements; null and absent have none.
func elements(raw []byte) ([]json.RawMessage, error) {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	errNotAnArray := errors.New("is not a JSON array")
	if raw[0] != '[' {
		return nil, errNotAnArray
	}
	var out []json.RawMessage
	i := skipSpace(raw, 1)
	for at(raw, i) != ']' {
		end := valueEnd(raw, i)
		if end < 0 {
			return nil, errNotAnArray
		}
		out = append(out, raw[i:end])
		switch i = skipSpace(raw, end); at(raw, i) {
		case ',':
			i = skipSpace(raw, i+1)
		case ']':
		default:
			return nil, errNotAnArray
		}
	}
	return out, nil
}

// at is the byte at i, 0 behind the end.
func at(raw []byte, i int) byte {
	if i < len(raw) {
		return raw[i]
	}
	return 0
}

func skipSpace(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\n' || raw[i] == '\t' || raw[i] == '\r') {
		i++
	}
	return i
}

// stringEnd is the index behind the string that begins at i, -1 where none does.
func stringEnd(raw []byte, i int) int {
	if at(raw, i) != '"' {
		return -1
	}
	first := i + 1
	for i = first; ; i++ {
		n := bytes.IndexByte(raw[i:], '"')
		if n < 0 {
			return -1
		}
		i += n
		// After an odd number of backslashes the quote is part of the string.
		b := i
		for b > first && raw[b-1] == '\\' {
			b--
		}
		if (i-b)%2 == 0 {
			return i + 1
		}
	}
}

// valueEnd is the index behind the value that begins at i, -1 where none does.
func valueEnd(raw []byte, i int) int {
	switch at(raw, i) {
	case '"':
		return stringEnd(raw, i)
	case '{', '[':
	default:
		start := i
		for i < len(raw) && strings.IndexByte(",]} \n\t\r", raw[i]) < 0 {
			i++
		}
		if i == start {
			return -1
		}
		return i
	}
	for depth := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			if i = stringEnd(raw, i) - 1; i < 0 {
				return -1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// unquote decodes a string.
func unquote(raw []byte) (string, error) {
	plain := raw[1 : len(raw)-1]
	for _, c := range plain {
		if c == '\\' || c < ' ' || c >= 0x80 {
			var s string
			err := json.Unmarshal(raw, &s)
			return s, err
		}
	}
	return string(plain), nil
}

// CgroupsPath returns linux.cgroupsPath of a configuration without decoding the rest,
// and false where there is none. A key of that name elsewhere, an annotation's, is
// another one.
func CgroupsPath(raw []byte) (path string, ok bool) {
	first := indexCgroupsPath(raw, 0)
	if first < 0 {
		return "", false
	}
	if indexCgroupsPath(raw, first+len(`"cgroupsPath"`)) >= 0 {
		var spec struct {
			Linux struct {
				CgroupsPath *string `json:"cgroupsPath"`
			} `json:"linux"`
		}
		// A value of another type elsewhere is runc's to refuse.
		if _ = json.Unmarshal(raw, &spec); spec.Linux.CgroupsPath == nil {
			return "", false
		}
		return *spec.Linux.CgroupsPath, true
	}
	if i := skipSpace(raw, stringEnd(raw, first)); at(raw, i) == ':' && inLinux(raw, first) {
		i = skipSpace(raw, i+1)
		if end := stringEnd(raw, i); end > 0 {
			err := json.Unmarshal(raw[i:end], &path)
			return path, err == nil
		}
	}
	return "", false
}

// indexCgroupsPath finds the string in raw[from:]. It looks for the one letter in it
// that is rare.
func indexCgroupsPath(raw []byte, from int) int {
	const head, tail = `"cgroups`, `Path"`
	for {
		n := bytes.Index(raw[from:], []byte(tail))
		if n < 0 {
			return -1
		}
		if start := from + n - len(head); start >= 0 && string(raw[start:from+n]) == head {
			return start
		}
		from += n + 1
	}
}

// inLinux tells whether raw[:end] ends in the member linux of the outermost object,
// and no deeper.
func inLinux(raw []byte, end int) bool {
	depth, key := 0, ""
	for i := 0; i < end; i++ {
		switch raw[i] {
		case '"':
			start := i
			if i = stringEnd(raw, start); i < 0 || i > end {
				return false
			}
			if depth == 1 && at(raw, skipSpace(raw, i)) == ':' {
				key, _ = unquote(raw[start:i])
			}
			i--
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
	}
	return depth == 2 && strings.EqualFold(key, "linux")
}

// withoutSeccomp is the configuration with null for the seccomp profile, for a view
// that leaves it out anyway.
func withoutSeccomp(raw []byte) []byte {
	var profile span
	_ = eachMember(raw, func(key string, linux span) bool {
		if key == "linux" {
			_ = eachMember(linux.of(raw), func(key string, value span) bool {
				if key == "seccomp" {
					profile = span{linux.start + value.start, linux.start + value.end}
				}
				return profile.end > 0
			})
		}
		return profile.end > 0
	})
	if profile.end == 0 {
		return raw
	}
	out := make([]byte, 0, len(raw)-(profile.end-profile.start)+len("null"))
	out = append(out, raw[:profile.start]...)
	out = append(out, "null"...)
	return append(out, raw[profile.end:]...)
}
