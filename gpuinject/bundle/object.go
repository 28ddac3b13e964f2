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
	changed bool
}

// member is one key of an object with its value as it was written, and the object in its place once
// something below it is edited.
type member struct {
	key   string
	value json.RawMessage
	child *object
}

// parseObject reads one JSON object; null and absent are an empty one.
func parseObject(raw json.RawMessage) (*object, error) {
	if isAbsent(raw) {
		return &object{}, nil
	}
	members, ok := scanObject(raw)
	if !ok {
		return nil, errors.New("is not a JSON object")
	}
	return &object{members: members}, nil
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
		if m.child != nil && m.child.changed {
			m.child.encode(b)
		} else {
			b.Write(m.value)
		}
	}
	b.WriteByte('}')
}

// find returns the index of the member key, -1 if there is none. Go's JSON decoder, which runc
// uses, accepts a key in any case and takes the last of several; an object in which that makes a
// difference could mean one thing here and another to runc, so it is refused (T51).
func (o *object) find(key string) (int, error) {
	found, n := -1, 0
	for i, m := range o.members {
		if strings.EqualFold(m.key, key) {
			n++
			if m.key != key {
				return -1, fmt.Errorf("has a key %q beside the standard %q", m.key, key)
			}
			found = i
		}
	}
	if n > 1 {
		return -1, fmt.Errorf("has the key %q %d times", key, n)
	}
	return found, nil
}

// edit replaces the value at a path of keys, "linux.resources.devices". change gets the present
// value, nil if there is none, and returns the new one; nil leaves everything as it is.
func (o *object) edit(path string, change func(json.RawMessage) (json.RawMessage, error)) error {
	key, rest, nested := strings.Cut(path, ".")
	i, err := o.find(key)
	if err != nil {
		return err
	}
	m := member{key: key}
	if i >= 0 {
		m = o.members[i]
	}
	changed := false
	if nested {
		if m.child == nil {
			m.child, err = parseObject(m.value)
		}
		if err == nil {
			err = m.child.edit(rest, change)
			changed = m.child.changed
		}
	} else {
		var value json.RawMessage
		if value, err = change(m.value); value != nil {
			m.value, changed = value, true
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	switch {
	case i >= 0:
		o.members[i] = m
	case changed:
		o.members = append(o.members, m)
	}
	o.changed = o.changed || changed
	return nil
}

// editArray is edit for an array; null and absent are an empty one.
func editArray(o *object, path string, change func([]json.RawMessage) ([]json.RawMessage, error)) error {
	return o.edit(path, func(raw json.RawMessage) (json.RawMessage, error) {
		var array []json.RawMessage
		if !isAbsent(raw) {
			var ok bool
			if array, ok = scanArray(raw); !ok {
				return nil, errors.New("is not a JSON array")
			}
		}
		array, err := change(array)
		if err != nil {
			return nil, err
		}
		return encodeArray(array), nil
	})
}

// encodeArray returns raw elements as an array.
func encodeArray(array []json.RawMessage) json.RawMessage {
	out := []byte{'['}
	for i, element := range array {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, element...)
	}
	return append(out, ']')
}
