package bundle

import (
	"bytes"
	"encoding/json"
	"strings"
)

// The functions here find their way through JSON by strings and brackets alone, at ten times the
// speed of a decoder: nine tenths of a configuration are a seccomp profile that nothing here reads.
// They never panic, but notice few errors, so Parse has encoding/json check the text first.

// scanObject returns the members of the object raw.
func scanObject(raw []byte) (members []member, ok bool) {
	ok = scanList(raw, '{', '}', func(i int) int {
		end := stringEnd(raw, i)
		if end < 0 {
			return -1
		}
		var m member
		if json.Unmarshal(raw[i:end], &m.key) != nil {
			return -1
		}
		if i = skipSpace(raw, end); at(raw, i) != ':' {
			return -1
		}
		i = skipSpace(raw, i+1)
		if end = valueEnd(raw, i); end > 0 {
			m.value = raw[i:end]
			members = append(members, m)
		}
		return end
	})
	return members, ok
}

// scanArray returns the elements of the array raw.
func scanArray(raw []byte) (elements []json.RawMessage, ok bool) {
	ok = scanList(raw, '[', ']', func(i int) int {
		end := valueEnd(raw, i)
		if end > 0 {
			elements = append(elements, raw[i:end])
		}
		return end
	})
	return elements, ok
}

// scanList calls item with the index of each item between the brackets of the list raw. item
// returns the index behind the item, -1 if there is none.
func scanList(raw []byte, open, end byte, item func(i int) int) bool {
	i := skipSpace(raw, 0)
	if at(raw, i) != open {
		return false
	}
	if i = skipSpace(raw, i+1); at(raw, i) == end {
		return true
	}
	for {
		if i = item(i); i < 0 {
			return false
		}
		switch i = skipSpace(raw, i); at(raw, i) {
		case ',':
			i = skipSpace(raw, i+1)
		case end:
			return true
		default:
			return false
		}
	}
}

func isAbsent(raw []byte) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

// at returns the byte at i, 0 behind the end.
func at(raw []byte, i int) byte {
	if i < len(raw) {
		return raw[i]
	}
	return 0
}

func skipSpace(raw []byte, i int) int {
	for i < len(raw) && strings.IndexByte(" \n\t\r", raw[i]) >= 0 {
		i++
	}
	return i
}

// stringEnd returns the index behind the string that begins at i, -1 if none does.
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

// valueEnd returns the index behind the value that begins at i, -1 if none does.
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
