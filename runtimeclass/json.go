package runtimeclass

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// member is one name and value of a JSON object, as offsets in the text.
type member struct {
	name                        string
	nameStart, valStart, valEnd int
}

// object is a JSON object in a text: where its braces are and what is in it.
type object struct {
	open, end int // of '{', and behind '}'
	members   []member
}

func (o object) find(name string) *member {
	for i := range o.members {
		// The last one of several counts, as for every reader in Go.
		if m := &o.members[len(o.members)-1-i]; m.name == name {
			return m
		}
	}
	return nil
}

// readObject finds the members of the object that begins at or behind start.
func readObject(text []byte, start int) (object, error) {
	dec := json.NewDecoder(bytes.NewReader(text[start:]))
	t, err := dec.Token()
	if err != nil {
		return object{}, err
	}
	if t != json.Delim('{') {
		return object{}, fmt.Errorf("%v is not a JSON object", t)
	}
	at := func() int { return start + int(dec.InputOffset()) }
	o := object{open: at() - 1}
	for dec.More() {
		before := at()
		t, err := dec.Token()
		if err != nil {
			return object{}, err
		}
		m := member{name: t.(string), nameStart: before + bytes.IndexByte(text[before:], '"')}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return object{}, err
		}
		m.valEnd = at()
		m.valStart = m.valEnd - len(raw)
		o.members = append(o.members, m)
	}
	if _, err := dec.Token(); err != nil {
		return object{}, err
	}
	o.end = at()
	return o, nil
}

// wholeObject reads a file that is one JSON object and nothing else.
func wholeObject(text []byte) (object, error) {
	o, err := readObject(text, 0)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the JSON ends too early")
		}
		return o, err
	}
	if rest := bytes.TrimSpace(text[o.end:]); len(rest) > 0 {
		return o, fmt.Errorf("there is %.64q behind the JSON object", rest)
	}
	return o, nil
}

// defaultIndent is Docker's documentation's.
const defaultIndent = "  "

// layout is how an object of a text is written: on lines of its own with an
// indentation, or in one line.
func (o object) layout(text []byte) (multi bool, indent string) {
	if len(o.members) == 0 {
		return true, lineIndent(text, o.open) + defaultIndent
	}
	first := o.members[0].nameStart
	space := string(text[o.open+1 : first])
	if i := strings.LastIndexByte(space, '\n'); i >= 0 {
		return true, space[i+1:]
	}
	return false, ""
}

// lineIndent is the white space at the beginning of the line of an offset.
func lineIndent(text []byte, at int) string {
	line := text[bytes.LastIndexByte(text[:at], '\n')+1 : at]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// setMember gives a member of an object a value, in place or as its last one.
func setMember(text []byte, o object, name string, value any) ([]byte, error) {
	multi, indent := o.layout(text)
	unit := strings.TrimPrefix(indent, lineIndent(text, o.open))
	if unit == "" {
		unit = defaultIndent
	}
	encode := func() ([]byte, error) {
		if !multi {
			return json.Marshal(value)
		}
		return json.MarshalIndent(value, indent, unit)
	}
	data, err := encode()
	if err != nil {
		return nil, err
	}
	if m := o.find(name); m != nil {
		return apply(text, []splice{{m.valStart, m.valEnd, string(data)}}), nil
	}
	with := quote(name) + ": " + string(data)
	switch {
	case len(o.members) == 0:
		with = "\n" + indent + with + "\n" + lineIndent(text, o.open)
		return apply(text, []splice{{o.open + 1, o.end - 1, with}}), nil
	case multi:
		with = ",\n" + indent + with
	default:
		with = ", " + with
	}
	last := o.members[len(o.members)-1].valEnd
	return apply(text, []splice{{last, last, with}}), nil
}

// removeMember takes a member and its comma out.
func removeMember(text []byte, o object, name string) []byte {
	for i, m := range o.members {
		if m.name != name {
			continue
		}
		switch {
		case len(o.members) == 1:
			return apply(text, []splice{{o.open + 1, o.end - 1, ""}})
		case i == 0:
			return apply(text, []splice{{m.nameStart, o.members[1].nameStart, ""}})
		}
		return apply(text, []splice{{o.members[i-1].valEnd, m.valEnd, ""}})
	}
	return text
}
