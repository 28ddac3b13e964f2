package runtimeclass

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
)

// DefaultDockerConfig is dockerd's own default.
const DefaultDockerConfig = "/etc/docker/daemon.json"

var reloadDocker = Restart{"reload", []string{"docker"}}

// installDocker plans the runtime's entry in daemon.json.
func installDocker(h Host, name string, r Registration) (Plan, error) {
	name, before, stripped, err := h.readDocker(name)
	if err != nil {
		return Plan{}, err
	}
	config, err := decodeJSON(stripped)
	if err != nil {
		return Plan{}, fmt.Errorf("%s: %w", name, err)
	}
	if config["runtimes"] == nil {
		config["runtimes"] = map[string]any{}
	}
	runtimes, ok := config["runtimes"].(map[string]any)
	if !ok {
		return Plan{}, fmt.Errorf("%s: \"runtimes\" is not an object", name)
	}
	runtimeType := RuntimeType
	if !r.inPath() {
		runtimeType = r.shim()
	}
	notes := []string{fmt.Sprintf("Docker: runtimeType %q, without options: the shim sees from the container's cgroup path who manages it", runtimeType)}
	if existing := runtimes[r.Handler]; existing != nil {
		if !r.Replace {
			return Plan{}, taken(r.Handler, name, existing, adviceReplace)
		}
		notes = append(notes, fmt.Sprintf("the runtime %q (%s) is replaced until uninstall; %s%s has it", r.Handler, describe(existing), name, BackupSuffix))
	}
	runtimes[r.Handler] = map[string]any{"runtimeType": runtimeType}
	if r.Default {
		config["default-runtime"] = r.Handler
	}
	changes, err := h.edited(name, before, stripped, encodeJSON(config, "  "))
	return Plan{Host: h, Handler: r.Handler, Changes: changes, Notes: notes, Restart: reloadDocker}, err
}

// uninstallDocker plans the removal from daemon.json.
func uninstallDocker(h Host, name string) (Plan, error) {
	name, before, stripped, err := h.readDocker(name)
	if err != nil {
		return Plan{}, err
	}
	changes, notes, err := h.restoredFile(name, before, stripped)
	return Plan{Host: h, Changes: changes, Notes: notes, Restart: reloadDocker}, err
}

// readDocker reads daemon.json, and takes our runtimes out of a copy. That is the original if
// nothing else changed. file is the name without links.
func (h Host) readDocker(name string) (file string, text, stripped []byte, err error) {
	if file, err = h.follow(name); err != nil {
		return "", nil, nil, err
	}
	if text, err = h.read(file); err != nil {
		return "", nil, nil, err
	}
	config, err := decodeJSON(text)
	if err != nil {
		return "", nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	backup, err := h.read(file + BackupSuffix)
	if err != nil {
		return "", nil, nil, err
	}
	original, err := decodeJSON(backup)
	if err != nil {
		return "", nil, nil, fmt.Errorf("%s%s: %w", file, BackupSuffix, err)
	}
	if !removeOurs(config, original) {
		return file, text, text, nil
	}
	if backup != nil && reflect.DeepEqual(config, original) {
		return file, text, backup, nil
	}
	return file, text, encodeJSON(config, "  "), nil
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
		runtimeType, _ := lookup(runtimes, name, "runtimeType").(string)
		before := lookup(original, "runtimes", name)
		if !isOurs(runtimeType, "") || reflect.DeepEqual(v, before) {
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
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more behind the JSON object")
	}
	return m, nil
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
