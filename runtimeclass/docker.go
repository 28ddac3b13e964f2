package runtimeclass

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"reflect"
)

// DefaultDockerConfig is dockerd's own default.
const DefaultDockerConfig = "/etc/docker/daemon.json"

func (p *Plan) registerDocker(o Options) error {
	r := o.Registration
	if v := p.Host.Daemon; v.Known() && !v.AtLeast(24, 0, 0) {
		return fmt.Errorf("dockerd %s ignores runtimeType and would start containers without their GPUs: use Docker 24.0 or later", v)
	} else if !v.Known() {
		p.note("the version of dockerd is not known: Docker before 24.0 would start containers without their GPUs")
	}
	p.noteCDIHook(len(o.CDI) > 0)
	file, config, err := p.Host.readDocker(o.ConfigFile)
	if err != nil {
		return err
	}
	if config["runtimes"] == nil {
		config["runtimes"] = map[string]any{}
	}
	runtimes, ok := config["runtimes"].(map[string]any)
	if !ok {
		return fmt.Errorf("%s: \"runtimes\" is not an object", file.name)
	}
	runtimeType := RuntimeType
	if !r.inPath() {
		runtimeType = r.shim()
	}
	p.note("Docker: runtimeType %q, without options: the shim sees from the container's cgroup path who manages it", runtimeType)
	now, err := p.Host.DockerRuntimes(file.name)
	if err != nil {
		return err
	}
	if existing := runtimes[r.Handler]; existing != nil {
		if _, own := now[r.Handler]; !r.Replace && !own {
			return taken(r.Handler, file.name, existing, adviceReplace)
		}
		p.note("the runtime %q (%s) is replaced until uninstall; %s%s has it", r.Handler, describe(existing), file.name, BackupSuffix)
	}
	ours := map[string]any{"runtimeType": runtimeType}
	runtimes[r.Handler] = ours
	for name := range now {
		if !dockerRuntime(runtimes, name).Ours() { // the others were registered by hand
			runtimes[name] = ours
		}
	}
	if r.Default {
		config["default-runtime"] = r.Handler
	}
	return p.edit(o, file, encodeJSON(config, "  "))
}

// DockerRuntimes returns the runtimes of a daemon.json that start this shim.
func (h Host) DockerRuntimes(name string) (map[string]Runtime, error) {
	_, config, err := h.readJSON(name)
	list := map[string]Runtime{}
	for name := range table(config, "runtimes") {
		if r := dockerRuntime(table(config, "runtimes"), name); r.Ours() {
			list[name] = r
		}
	}
	return list, err
}

func dockerRuntime(runtimes map[string]any, name string) Runtime {
	runtimeType, _ := table(runtimes, name)["runtimeType"].(string)
	return Runtime{Type: runtimeType}
}

// noteCDIHook says what --gpus needs besides a CDI specification, or what hides NVIDIA's program.
func (p *Plan) noteCDIHook(cdi bool) {
	link, program := "", ""
	for _, name := range inServicePath("nvidia-cdi-hook") {
		to, _ := p.Host.change(Link, name, nil) // without a directory there is none
		switch {
		case program != "" || !p.Host.Exists(name):
		case path.Base(string(to.Before)) == "false":
			link = name
		default:
			program = name
		}
	}
	switch {
	case link != "" && program != "":
		p.note("the link %s hides %s: remove it", link, program)
	case cdi && link == "" && program == "":
		p.note("docker run --gpus also needs a program nvidia-cdi-hook in dockerd's PATH, which dockerd never runs: without NVIDIA's, `ln -s /bin/false /usr/local/bin/nvidia-cdi-hook`, then `systemctl restart docker`")
	}
}

// readDocker reads daemon.json without the runtimes that install registered. That is the original
// if nothing else changed.
func (h Host) readDocker(name string) (configFile, map[string]any, error) {
	name, err := h.follow(name)
	if err != nil {
		return configFile{}, nil, err
	}
	text, config, err := h.readJSON(name)
	if err != nil {
		return configFile{}, nil, err
	}
	backup, original, err := h.readJSON(name + BackupSuffix)
	if err != nil {
		return configFile{}, nil, err
	}
	file := configFile{name, text, text}
	formatted := bytes.Equal(text, encodeJSON(config, "  "))
	removed := removeOurs(config, original)
	switch {
	// Without a record, a file that an installation made has nothing else.
	case backup == nil && !h.recorded(name) && !(formatted && len(config) == 0):
		_, config, err = h.readJSON(name)
	case backup != nil && reflect.DeepEqual(config, original):
		file.original = backup
	case removed:
		file.original = encodeJSON(config, "  ")
	}
	return file, config, err
}

func (h Host) readJSON(name string) ([]byte, map[string]any, error) {
	text, err := h.Read(name)
	if err != nil {
		return nil, nil, err
	}
	config, err := decodeJSON(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return text, config, nil
}

// removeOurs takes our runtimes out of a configuration and puts back what the original has in their
// place. It reports whether there were any. JSON has no comments to mark an edit with; a runtime is
// ours by its type.
func removeOurs(config, original map[string]any) bool {
	restore := func(m map[string]any, key string, value any) {
		delete(m, key)
		if value != nil {
			m[key] = value
		}
	}
	removed := false
	runtimes := table(config, "runtimes")
	for name, v := range runtimes {
		before := table(original, "runtimes")[name]
		if !dockerRuntime(runtimes, name).Ours() || reflect.DeepEqual(v, before) {
			continue
		}
		removed = true
		restore(runtimes, name, before)
		if config["default-runtime"] == name {
			restore(config, "default-runtime", original["default-runtime"])
		}
	}
	if removed && len(runtimes) == 0 && original["runtimes"] == nil {
		delete(config, "runtimes")
	}
	return removed
}

// decodeJSON reads a file that is one object. Numbers keep their form. No text is no keys.
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
		return nil, errors.New("data after the JSON object")
	}
	return m, nil
}

// jsonError adds the line of a text to an error of JSON, and takes Go's types from it.
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
	return fmt.Errorf("line %d: %w", 1+bytes.Count(text[:end], []byte("\n")), err)
}

func encodeJSON(v any, indent string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	// What was decoded from JSON always encodes.
	_ = enc.Encode(v)
	return b.Bytes()
}
