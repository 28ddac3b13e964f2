package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// Find loads the named file; without a name the one that this process' environment names, or the
// default one. The shim's environment is containerd's, not a container's.
func Find(name string) (*Config, error) {
	if name = cmp.Or(name, os.Getenv(EnvFile)); name != "" {
		return Load(name)
	}
	c, err := Load(DefaultPath)
	if errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	return c, err
}

// Load reads the configuration file name. Keys that it does not set keep their default. Errors name
// the file, the key and the value.
func Load(name string) (*Config, error) {
	data, err := ReadTrusted(name)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	c := Default()
	if err := Decode(data, c); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", name, err)
	}
	if key, err := c.validate(); err != nil {
		return nil, fmt.Errorf("configuration %s: line %d: key %q: %w", name, lineOf(data, strings.Split(key, ".")), key, err)
	}
	return c, nil
}

// maxSize bounds the configuration file, in bytes.
const maxSize = 1 << 20

// ReadTrusted reads a configuration file that only root can have written: its content steers mounts
// (T61). The file may be a link, as it is with package managers and Kubernetes.
func ReadTrusted(name string) ([]byte, error) {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return nil, err
	}
	data, _, err := trusted.Read(real, maxSize) // guard: root's files: configuration
	return data, err
}

// Decode reads TOML into v, which must have every key. The error is one line with the key.
func Decode(data []byte, v any) error {
	// guard: configuration: no unknown key
	err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(v)
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) && len(strict.Errors) > 0 {
		e := strict.Errors[0]
		row, _ := e.Position()
		return fmt.Errorf("line %d: unknown key %q", row, strings.Join(e.Key(), "."))
	}
	var de *toml.DecodeError
	if !errors.As(err, &de) {
		return err
	}
	row, _ := de.Position()
	key := strings.Join(de.Key(), ".")
	if key == "" {
		return fmt.Errorf("line %d: %s", row, plain(de))
	}
	// The library reports line 1 for a list in a list.
	return fmt.Errorf("line %d: key %q: %s", max(row, lineOf(data, de.Key())), key, plain(de))
}

// WithoutLine removes the line from an error of Decode, for a table that containerd has re-encoded:
// the line would not be that of the file.
func WithoutLine(err error) error {
	if line, text, _ := strings.Cut(err.Error(), ": "); strings.HasPrefix(line, "line ") {
		return errors.New(text)
	}
	return err
}

// kinds maps the library's names of TOML types, and Go's names of the wanted types, to plain words.
var kinds = map[string]string{
	"string": "a string", "bool": "true or false", "boolean": "true or false", "[]string": "a list of strings", "uint32": "a number",
	"integer": "a number", "float": "a number", "array": "a list", "array table": "a list of tables", "inline table": "a table", "datetime": "a date",
}

// plain returns the text of the library's error without Go types.
func plain(err error) string {
	text := strings.TrimPrefix(err.Error(), "toml: ")
	for _, begin := range []string{"cannot decode TOML ", "cannot store a ", "cannot store an "} {
		if rest, ok := strings.CutPrefix(text, begin); ok {
			there, _, _ := strings.Cut(rest, " in") // "in a TYPE" or "into struct field NAME of type TYPE"
			wanted := rest[strings.LastIndexByte(rest, ' ')+1:]
			return fmt.Sprintf("want %s, not %s", cmp.Or(kinds[wanted], "a table"), cmp.Or(kinds[there], "a "+there))
		}
	}
	if value, _, ok := strings.Cut(text, " cannot be stored in "); ok {
		return value + " is out of range"
	}
	return text
}

// lineOf returns the line of a key in valid TOML, or else of the table with it. The library ignores
// the case of keys.
func lineOf(data []byte, key []string) (line int) {
	var p unstable.Parser
	var table []string
	for p.Reset(data); p.NextExpression(); {
		e := p.Expression()
		var path []string
		if e.Kind == unstable.KeyValue {
			path = slices.Clone(table)
		}
		var last unstable.Range
		for names := e.Key(); names.Next(); {
			path, last = append(path, string(names.Node().Data)), names.Node().Raw
		}
		if e.Kind != unstable.KeyValue {
			table = path
		}
		if len(path) > len(key) || !slices.EqualFunc(path, key[:len(path)], strings.EqualFold) {
			continue
		}
		if line = p.Shape(last).Start.Line; len(path) == len(key) {
			break
		}
	}
	return line
}

// Override sets the keys of the tables [policy] and [container] of a runtime handler's options;
// other keys keep their value.
func (c *Config) Override(tables []byte) error {
	over := struct {
		Container *Container `toml:"container"`
		Policy    *Policy    `toml:"policy"`
	}{Container: &c.Container, Policy: &c.Policy}
	if err := Decode(tables, &over); err != nil {
		return WithoutLine(err)
	}
	if key, err := c.validate(); err != nil {
		return fmt.Errorf("key %q: %w", key, err)
	}
	return nil
}

// validate returns the key of a bad value with the error.
func (c *Config) validate() (string, error) {
	h := &c.Host
	type path struct {
		key   string
		value *string
	}
	paths := []path{
		{"host.driver-root", &h.DriverRoot}, {"host.dev-root", &h.DevRoot}, {"host.proc-root", &h.ProcRoot},
		{"host.sys-root", &h.SysRoot}, {"host.state-dir", &h.StateDir},
		{"host.mps-pipe-directory", &h.MPSPipeDirectory}, {"policy.kubelet-socket", &c.Policy.KubeletSocket},
	}
	for i := range h.DriverLibraries {
		paths = append(paths, path{"host.driver-libraries", &h.DriverLibraries[i]})
	}
	for _, p := range paths {
		if !filepath.IsAbs(*p.value) {
			return p.key, fmt.Errorf("%q is not an absolute path", *p.value)
		}
		*p.value = filepath.Clean(*p.value)
	}
	if h.StateDir == "/" {
		return "host.state-dir", fmt.Errorf("%q cannot hold the state of the shim", h.StateDir)
	}
	if key, err := c.validateWords(); err != nil {
		return key, err
	}
	for key, value := range map[string]string{memlimit.KeyDefault: c.Container.MemoryLimit, memlimit.KeyMax: c.Policy.MaxMemoryLimit} {
		if _, err := memlimit.Parse(value, 0); value != "" && err != nil {
			return key, err
		}
	}
	if text := c.Policy.SuspendIdleAfter; text != "" {
		if _, err := ParseIdle(text); err != nil {
			return "policy.suspend-idle-after", err
		}
	}
	for _, name := range c.Policy.SwarmResources {
		if kind, ok := strings.CutPrefix(name, SwarmPrefix); !ok || kind == "" {
			return "policy.swarm-resources", fmt.Errorf("%q is not the name of a variable %s<KIND>", name, SwarmPrefix)
		}
	}
	return "", nil
}

// validateWords returns the key of a value that is not one of a few words, with the error.
func (c *Config) validateWords() (string, error) {
	for _, l := range []struct {
		key           string
		values, known []string
	}{
		{"container.supported-capabilities", c.Container.SupportedCapabilities, capabilities},
		{"container.default-capabilities", c.Container.DefaultCapabilities, capabilities},
		{"container.sockets", c.Container.Sockets, sockets},
		{"container.on-pause", []string{c.Container.OnPause}, []string{SuspendGPU, Freeze}},
		{"policy.allow-from-environment", c.Policy.AllowFromEnvironment, devnode.Names()},
		{"policy.kubernetes", []string{c.Policy.Kubernetes}, []string{Enforce, Audit, TrustEnv}},
		{"policy.faulty-gpus", []string{c.Policy.FaultyGPUs}, []string{LeaveOut, Refuse}},
		{"policy.health", []string{c.Policy.Health}, []string{Off, Warn, Refuse}},
		{"policy.memory-limits", []string{c.Policy.MemoryLimits}, []string{Enforce, Ignore, HAMi}},
		{"policy.rdma-adapters", []string{c.Policy.RDMAAdapters}, []string{Near, AllAdapters}},
		{"policy.foreign-hooks", []string{c.Policy.ForeignHooks}, []string{Replace, Refuse}},
		{"log.level", []string{c.Log.Level}, []string{"error", "warn", "info", "debug"}},
	} {
		for _, value := range l.values {
			if !slices.Contains(l.known, value) { // guard: configuration: no unknown value
				return l.key, fmt.Errorf("%q is not one of %s", value, strings.Join(l.known, ", "))
			}
		}
	}
	return "", nil
}

// Bounds of a time without GPU work.
const minIdle, maxIdle = time.Second, 7 * 24 * time.Hour

// ParseIdle returns a time without GPU work after which a container is suspended, such as "30m".
func ParseIdle(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < minIdle || d > maxIdle {
		return 0, fmt.Errorf("%.64q is not a time from 1s to 168h, such as \"30m\"", text)
	}
	return d, nil
}
