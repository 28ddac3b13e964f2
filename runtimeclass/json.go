package runtimeclass

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// decodeJSON decodes a text that is one object. Numbers keep their form. An empty text is an empty
// object.
func decodeJSON(text []byte) (map[string]any, error) {
	m := map[string]any{}
	if len(bytes.TrimSpace(text)) == 0 {
		return m, nil
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		return nil, jsonError(text, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, atLine(text, dec.InputOffset(), errors.New("data after the JSON object"))
	}
	return m, nil
}

// jsonError adds the line number to a JSON error and removes the names of Go types from it.
func jsonError(text []byte, err error) error {
	end := int64(len(text))
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		end = syntax.Offset
	case errors.As(err, &kind):
		end, err = kind.Offset, fmt.Errorf("unexpected JSON %s", kind.Value)
		if kind.Field != "" {
			err = fmt.Errorf("%s: %w", kind.Field, err)
		}
	}
	return atLine(text, end, err)
}

func atLine(text []byte, end int64, err error) error {
	return fmt.Errorf("line %d: %w", 1+bytes.Count(text[:end], []byte("\n")), err)
}

func encodeJSON(v any, indent string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	// A value decoded from JSON can always be encoded.
	_ = enc.Encode(v)
	return b.Bytes()
}
