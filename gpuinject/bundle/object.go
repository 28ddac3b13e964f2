package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// member is one key of a JSON object with its value as it was written, or the object
// that an edit made of it.
type member struct {
	key   string
	value json.RawMessage
	child *object
}

// object is a JSON object that keeps the order of its members and the bytes of
// their values.
type object struct {
	members []member
	changed bool
}

// parseObject reads one JSON object; null and absent are an empty one.
func parseObject(raw json.RawMessage) (*object, error) {
	o := &object{}
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || string(raw) == "null" {
		return o, nil
	}
	err := eachMember(raw, func(key string, value span) bool {
		o.members = append(o.members, member{key: key, value: value.of(raw)})
		return false
	})
	return o, err
}

// encode writes the object, values that were not edited byte for byte.
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

// find returns the index of the member key, -1 where there is none. Go's JSON decoder,
// which runc uses, takes a key in any case and the last of several; an object where
// that makes a difference could mean one thing to us and another to runc, so it is
// refused (T51).
func (o *object) find(key string) (int, error) {
	found := -1
	n := 0
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

// edit rewrites the value at the path of nested objects below o. fn gets the
// present value, nil where there is none, and returns the new one; nil leaves all
// as it is.
func (o *object) edit(path []string, fn func(json.RawMessage) (json.RawMessage, error)) error {
	i, err := o.find(path[0])
	if err != nil {
		return err
	}
	m := member{key: path[0]}
	if i >= 0 {
		m = o.members[i]
	}
	if len(path) == 1 {
		value, err := fn(m.value)
		if err != nil {
			return fmt.Errorf("%s: %w", path[0], err)
		}
		if value != nil {
			m.value = value
			o.put(i, m)
			o.changed = true
		}
		return nil
	}
	if m.child == nil {
		m.child, err = parseObject(m.value)
	}
	if err == nil {
		err = m.child.edit(path[1:], fn)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path[0], err)
	}
	if m.child.changed || i >= 0 {
		o.put(i, m)
		o.changed = o.changed || m.child.changed
	}
	return nil
}

// put replaces the member i, or appends one.
func (o *object) put(i int, m member) {
	if i < 0 {
		o.members = append(o.members, m)
		return
	}
	o.members[i] = m
}

// appendElements adds elements to a raw JSON array, null and absent being empty.
func appendElements[T any](raw json.RawMessage, added []T) (json.RawMessage, error) {
	array, err := elements(raw)
	if err != nil {
		return nil, err
	}
	for _, e := range added {
		enc, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		array = append(array, enc)
	}
	return encodeArray(array), nil
}

// encodeArray writes raw elements as an array, byte for byte.
func encodeArray(array []json.RawMessage) json.RawMessage {
	size := 2
	for _, e := range array {
		size += len(e) + 1
	}
	b := append(make([]byte, 0, size), '[')
	for i, e := range array {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, e...)
	}
	return append(b, ']')
}
