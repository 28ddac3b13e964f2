package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// object is a JSON object that keeps the order of its members and the bytes of their values.
type object struct {
	members []member
	edited  bool
}

// member is one key of an object with its value as it was written, replaced by the object once
// something below it is edited.
type member struct {
	key   string
	value json.RawMessage
	child *object
}

// parseObject reads one JSON object; null and absent are an empty one.
func parseObject(raw json.RawMessage) (*object, error) {
	o := &object{}
	if len(raw) == 0 || string(raw) == "null" {
		return o, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("is not a JSON object")
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		m := member{key: fmt.Sprint(key)}
		if err := dec.Decode(&m.value); err != nil {
			return nil, err
		}
		o.members = append(o.members, m)
	}
	return o, nil
}

// encode writes the object as JSON; values that were not edited keep their bytes.
func (o *object) encode(b *bytes.Buffer) {
	b.WriteByte('{')
	for i, m := range o.members {
		if i > 0 {
			b.WriteByte(',')
		}
		key, _ := json.Marshal(m.key)
		b.Write(key)
		b.WriteByte(':')
		if m.child != nil {
			m.child.encode(b)
		} else {
			b.Write(m.value)
		}
	}
	b.WriteByte('}')
}

// member returns the member with this key, and adds it if there is none. Go's JSON decoder, which
// runc uses, accepts a key in any case and takes the last of several; an object in which that makes
// a difference could mean one thing here and another to runc, so it is an error (T51).
func (o *object) member(key string) (*member, error) {
	var found *member
	n := 0
	for i := range o.members {
		m := &o.members[i]
		if strings.EqualFold(m.key, key) {
			n++
			if m.key != key { // guard: config.json: no key in another case
				return nil, fmt.Errorf("has a key %q beside the standard %q", m.key, key)
			}
			found = m
		}
	}
	if n > 1 { // guard: config.json: no key twice
		return nil, fmt.Errorf("has the key %q %d times", key, n)
	}
	if n == 0 {
		o.members = append(o.members, member{key: key})
		found = &o.members[len(o.members)-1]
	}
	return found, nil
}

// edit replaces the array at a path of keys, "linux.resources.devices"; null and absent are an
// empty one.
func (o *object) edit(path string, change func([]json.RawMessage) []json.RawMessage) error {
	key, rest, nested := strings.Cut(path, ".")
	m, err := o.member(key)
	if err != nil {
		return err
	}
	o.edited = true
	if nested && m.child == nil {
		m.child, err = parseObject(m.value)
	}
	switch {
	case err != nil:
	case nested:
		err = m.child.edit(rest, change)
	default:
		m.value, err = editArray(m.value, change)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// editArray returns an array with other elements; those that stay keep their bytes.
func editArray(raw json.RawMessage, change func([]json.RawMessage) []json.RawMessage) (json.RawMessage, error) {
	var elements []json.RawMessage
	if len(raw) > 0 && json.Unmarshal(raw, &elements) != nil {
		return nil, errors.New("is not a JSON array")
	}
	out := []byte{'['}
	for i, element := range change(elements) {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, element...)
	}
	return append(out, ']'), nil
}
