package toolkit

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Paths are where the toolkit's file is: that of its packages, and that of the toolkit
// container of NVIDIA's operator.
var Paths = []string{
	"/etc/nvidia-container-runtime/config.toml",
	"/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
}

// States of an option.
const (
	// Carried: it is in the new file.
	Carried = "carried over"
	// Default: it says what is so here without a setting.
	Default = "the default here"
	// None: it has no meaning here, and nothing is lost.
	None = "no meaning here"
	// Attention: it had an effect that the new file does not have. Why says what to do.
	Attention = "look at it"
)

// Option is one option that the toolkit's file sets.
type Option struct {
	// Key is dotted: "nvidia-container-cli.root". Value is as TOML.
	Key   string `json:"key"`
	Value string `json:"value"`
	State string `json:"state"`
	// To is the setting here: "host.driver-root".
	To  string `json:"to,omitempty"`
	Why string `json:"why,omitempty"`
}

// Report is what becomes of a file.
type Report struct {
	Options []Option `json:"options"`
	// Notes are about options that are not in the file, and whose defaults differ.
	Notes []string `json:"notes"`
	// Text is the shim's configuration, "" where nothing was carried over.
	Text string `json:"text"`
}

// migration collects the settings.
type migration struct {
	known   map[string]map[string]any
	exists  func(path string) bool
	set     map[string]map[string]any
	options []Option
}

// Toolkit reads the toolkit's file. exists tells whether a path of the host is there.
func Toolkit(text []byte, exists func(path string) bool) (*Report, error) {
	var tree map[string]any
	if err := toml.NewDecoder(bytes.NewReader(text)).Decode(&tree); err != nil {
		return nil, errors.New(config.Describe(err))
	}
	m := &migration{exists: exists, set: map[string]map[string]any{}}
	if err := m.learn(); err != nil {
		return nil, err
	}
	values := map[string]any{}
	flatten("", tree, values)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		m.option(key, values[key])
	}
	r := &Report{Options: m.options, Notes: m.notes(values), Text: m.text()}
	return r, nil
}

// learn finds out which settings this build of the shim has.
func (m *migration) learn() error {
	text, err := toml.Marshal(config.Default())
	if err != nil {
		return err
	}
	return toml.Unmarshal(text, &m.known)
}

// flatten makes dotted keys of tables. An empty table sets nothing.
func flatten(prefix string, tree, out map[string]any) {
	for key, value := range tree {
		if prefix != "" {
			key = prefix + "." + key
		}
		if sub, ok := value.(map[string]any); ok {
			flatten(key, sub, out)
			continue
		}
		out[key] = value
	}
}

// option decides about one.
func (m *migration) option(key string, value any) {
	o := Option{Key: key, Value: inTOML(value), State: Attention}
	rule, ok := rules[key]
	switch {
	case ok:
		if err := rule(m, &o, value); err != nil {
			o.State, o.To, o.Why = Attention, "", err.Error()
		}
	case strings.HasPrefix(key, "nvidia-container-runtime.modes.jit-cdi."):
		o.State, o.Why = None, "no CDI specification is made"
	default:
		o.Why = "this option of the toolkit is not known to this nvidia-shimctl"
	}
	m.options = append(m.options, o)
}

// put carries a value over.
func (m *migration) put(o *Option, to string, value any) error {
	section, key, _ := strings.Cut(to, ".")
	standard, ok := m.known[section][key]
	if !ok {
		return fmt.Errorf("this build of the shim has no %s", to)
	}
	o.To = to
	if inTOML(standard) == inTOML(value) {
		o.State = Default
		return nil
	}
	o.State = Carried
	if m.set[section] == nil {
		m.set[section] = map[string]any{}
	}
	m.set[section][key] = value
	return nil
}

// notes are what the defaults of both are about.
func (m *migration) notes(values map[string]any) []string {
	notes := []string{}
	if _, ok := values[keyMounts]; !ok {
		notes = append(notes, "device-list mounts are accepted here unless policy.accept-volume-mounts = false; the toolkit's default is not to")
	}
	if _, ok := values[keyLoad]; !ok {
		notes = append(notes, "the toolkit loads kernel modules at each container; here `nvidia-shimctl prepare` does, with host.load-kernel-modules = true")
	}
	return append(notes, "in Kubernetes the environment of a container selects among its allocated GPUs and grants none, whatever the toolkit's file says: policy.kubernetes")
}

// text writes the settings, by section in the order of the sample file.
func (m *migration) text() string {
	var b strings.Builder
	for _, section := range []string{"host", "container", "policy", "log"} {
		if len(m.set[section]) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n[%s]\n", section)
		for _, key := range slices.Sorted(maps.Keys(m.set[section])) {
			fmt.Fprintf(&b, "%s = %s\n", key, inTOML(m.set[section][key]))
		}
	}
	return b.String()
}

// inTOML writes a value of the kinds that the configuration has.
func inTOML(value any) string {
	switch v := value.(type) {
	case string:
		return quote(v)
	case bool:
		return strconv.FormatBool(v)
	case []string:
		items := make([]string, len(v))
		for i, s := range v {
			items[i] = quote(s)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case []any:
		items := make([]string, len(v))
		for i, s := range v {
			items[i] = inTOML(s)
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	return fmt.Sprint(value)
}

// quote writes a basic string of TOML.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, "\\u%04X", r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// clean is a path as the configuration keeps it.
func clean(value any) (string, error) {
	s, err := text(value)
	if err == nil && !path.IsAbs(s) {
		err = fmt.Errorf("%.256q is not an absolute path", s)
	}
	return path.Clean(s), err
}
