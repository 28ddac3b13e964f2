package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// member is one key of a JSON object with its value as it was written.
type member struct {
	key   string
	value json.RawMessage
}

// object is a JSON object that keeps the order of its members and the bytes of
// their values.
type object []member

// parseObject reads one JSON object; null and absent are an empty one.
func parseObject(raw json.RawMessage) (object, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if tok != json.Delim('{') {
		return nil, fmt.Errorf("is not a JSON object")
	}
	var o object
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, err
		}
		key, ok := tok.(string)
		if !ok {
			return nil, fmt.Errorf("has a key that is not a string")
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		o = append(o, member{key, value})
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	return o, nil
}

// encode writes the object back, values byte for byte.
func (o object) encode() json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, _ := json.Marshal(m.key)
		b.Write(key)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// get returns the value of key. Go's JSON decoder, which runc uses, takes a key
// in any case and the last of several; an object where that makes a difference
// could mean one thing to us and another to runc, so it is refused (T51).
func (o object) get(key string) (json.RawMessage, error) {
	var found json.RawMessage
	n := 0
	for _, m := range o {
		if strings.EqualFold(m.key, key) {
			n++
			if m.key != key {
				return nil, fmt.Errorf("has a key %q beside the standard %q", m.key, key)
			}
			found = m.value
		}
	}
	if n > 1 {
		return nil, fmt.Errorf("has the key %q %d times", key, n)
	}
	return found, nil
}

// set replaces the value of key, or appends the member.
func (o object) set(key string, value json.RawMessage) object {
	for i := range o {
		if o[i].key == key {
			o[i].value = value
			return o
		}
	}
	return append(o, member{key, value})
}

// edit rewrites the value at the path of nested objects below o. fn gets the
// present value, nil where there is none, and returns the new one; nil leaves all
// as it is.
func (o object) edit(path []string, fn func(json.RawMessage) (json.RawMessage, error)) (object, error) {
	old, err := o.get(path[0])
	if err != nil {
		return nil, err
	}
	var value json.RawMessage
	if len(path) == 1 {
		value, err = fn(old)
	} else {
		var child, edited object
		if child, err = parseObject(old); err == nil {
			if edited, err = child.edit(path[1:], fn); err == nil && edited != nil {
				value = edited.encode()
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path[0], err)
	}
	if value == nil {
		return o, nil
	}
	return o.set(path[0], value), nil
}

// appendElements adds elements to a raw JSON array, null and absent being empty.
func appendElements[T any](raw json.RawMessage, elements []T) (json.RawMessage, error) {
	var array []json.RawMessage
	if len(bytes.TrimSpace(raw)) > 0 {
		if err := json.Unmarshal(raw, &array); err != nil {
			return nil, err
		}
	}
	for _, e := range elements {
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
	var b bytes.Buffer
	b.WriteByte('[')
	for i, e := range array {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(e)
	}
	b.WriteByte(']')
	return b.Bytes()
}
