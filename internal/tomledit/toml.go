package tomledit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Decode decodes a TOML file. An error is one line and has the position.
func Decode(text []byte) (map[string]any, error) {
	m := map[string]any{}
	err := toml.Unmarshal(text, &m)
	if err == nil {
		return m, nil
	}
	line := 1
	var at *toml.DecodeError
	if errors.As(err, &at) {
		line, _ = at.Position()
	}
	return nil, fmt.Errorf("line %d: %s", line, strings.ReplaceAll(err.Error(), "\n", " "))
}

// Table returns a nested table. A missing table is nil, which can be read.
func Table(m map[string]any, path ...string) map[string]any {
	for _, key := range path {
		m, _ = m[key].(map[string]any)
	}
	return m
}

// Merge merges from into to, table by table, as containerd 2.1 and later do with imports.
func Merge(to, from map[string]any) {
	for key, v := range from {
		if sub, ok := v.(map[string]any); ok {
			if Table(to, key) == nil {
				to[key] = map[string]any{}
			}
			Merge(Table(to, key), sub)
			continue
		}
		to[key] = v
	}
}

// WithoutEmpty returns a copy of a table without empty tables.
func WithoutEmpty(table map[string]any) map[string]any {
	out := map[string]any{}
	for key, v := range table {
		sub, ok := v.(map[string]any)
		if ok {
			sub = WithoutEmpty(sub)
			v = sub
		}
		if !ok || len(sub) > 0 {
			out[key] = v
		}
	}
	return out
}
