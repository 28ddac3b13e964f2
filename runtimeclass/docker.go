package runtimeclass

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// DefaultDockerConfig is dockerd's own default.
const DefaultDockerConfig = "/etc/docker/daemon.json"

// dockerRuntime is an entry of "runtimes" in daemon.json.
func (r Registration) dockerRuntime() map[string]any {
	if r.inPath() {
		return map[string]any{"runtimeType": RuntimeType}
	}
	return map[string]any{"runtimeType": r.shim()}
}

// docker is a daemon.json and its state before the installation.
type docker struct {
	text []byte
	// backup is decoded from the back-up file; nil without one.
	backup     map[string]any
	backupText []byte
}

func decodeJSON(text []byte) (map[string]any, error) {
	m := map[string]any{}
	if len(bytes.TrimSpace(text)) == 0 {
		return m, nil
	}
	if _, err := wholeObject(text); err != nil {
		return nil, err
	}
	return m, json.Unmarshal(text, &m)
}

// InstallDocker plans the runtime's entry in daemon.json. Unknown fields, their order
// and their form stay.
func InstallDocker(h Host, name string, r Registration) (*Plan, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	name, d, before, err := h.openDocker(name)
	if err != nil {
		return nil, err
	}
	p := &Plan{Host: h, Restart: Restart{"reload", []string{"docker"}}}
	stripped, err := d.strip()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	config, err := decodeJSON(stripped)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if _, ok := config["runtimes"].(map[string]any); !ok && config["runtimes"] != nil {
		return nil, fmt.Errorf("%s: \"runtimes\" is not an object", name)
	}
	if existing := lookup(config, "runtimes", r.Handler); existing != nil {
		if !r.Replace {
			return nil, fmt.Errorf("%s: %w: %q is %s: choose another --handler, or --replace it until uninstall", name, ErrTaken, r.Handler, shortJSON(existing))
		}
		p.note(fmt.Sprintf("the runtime %q (%s) is replaced until uninstall; %s%s has it", r.Handler, shortJSON(existing), name, BackupSuffix))
	}
	want, err := decodeJSON(stripped)
	if err != nil {
		return nil, err
	}
	put(want, r.dockerRuntime(), "runtimes", r.Handler)
	text := stripped
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}\n")
	}
	if text, err = setNested(text, "runtimes", r.Handler, r.dockerRuntime()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if r.Default {
		put(want, r.Handler, "default-runtime")
		o, err := wholeObject(text)
		if err != nil {
			return nil, err
		}
		if text, err = setMember(text, o, "default-runtime", r.Handler); err != nil {
			return nil, err
		}
	}
	got, err := decodeJSON(text)
	if err != nil || !reflect.DeepEqual(got, want) {
		return nil, fmt.Errorf("%s: this file cannot be extended: add {\"runtimes\": {%q: %s}} by hand", name, r.Handler, shortJSON(r.dockerRuntime()))
	}
	if now, err := decodeJSON(before); before != nil && err == nil && reflect.DeepEqual(now, want) {
		text = before
	}
	p.Changes = []Change{{Path: name, Before: before, After: text, Backup: before != nil && bytes.Equal(before, stripped) && !bytes.Equal(before, text)}}
	p.note(fmt.Sprintf("Docker: runtimeType %s, without options: the shim sees from the container's cgroup path who manages it", shortJSON(r.dockerRuntime()["runtimeType"])))
	return p, nil
}

// UninstallDocker plans the removal from daemon.json.
func UninstallDocker(h Host, name string) (*Plan, error) {
	name, d, before, err := h.openDocker(name)
	if err != nil {
		return nil, err
	}
	p := &Plan{Host: h, Restart: Restart{"reload", []string{"docker"}}}
	if before != nil {
		stripped, err := d.strip()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		c := Change{Path: name, Before: before, After: stripped}
		config, err := decodeJSON(stripped)
		if err != nil {
			return nil, err
		}
		if c.changes() {
			if len(config) == 0 && d.backup == nil {
				c.After = nil
			}
			c.BackupDone = d.backup != nil && bytes.Equal(d.backupText, stripped)
			p.Changes = append(p.Changes, c)
		}
	}
	return p, h.explain(p)
}

func (h Host) openDocker(name string) (string, *docker, []byte, error) {
	name, err := h.follow(name)
	if err != nil {
		return "", nil, nil, err
	}
	d := &docker{}
	if d.text, err = h.read(name); err != nil {
		return "", nil, nil, err
	}
	if d.backupText, err = h.read(name + BackupSuffix); err != nil {
		return "", nil, nil, err
	}
	if d.backupText != nil {
		if d.backup, err = decodeJSON(d.backupText); err != nil {
			return "", nil, nil, fmt.Errorf("%s%s: %w", name, BackupSuffix, err)
		}
	}
	return name, d, d.text, nil
}

// strip takes our runtimes out and puts back what the back-up has in their place.
// JSON has no comments to mark an edit with; a runtime is ours by its type.
func (d *docker) strip() ([]byte, error) {
	config, err := decodeJSON(d.text)
	if err != nil {
		return nil, err
	}
	runtimes := table(config, "runtimes")
	var ours []string
	text := d.text
	for name, v := range runtimes {
		entry, _ := v.(map[string]any)
		kind, _ := entry["runtimeType"].(string)
		if isOurs(kind, "") && !reflect.DeepEqual(v, lookup(d.backup, "runtimes", name)) {
			ours = append(ours, name)
		}
	}
	if len(ours) == 0 {
		return text, nil
	}
	for _, name := range ours {
		if config["default-runtime"] == name {
			if text, err = restoreMember(text, nil, "default-runtime", d.backup["default-runtime"]); err != nil {
				return nil, err
			}
		}
		if text, err = restoreMember(text, []string{"runtimes"}, name, lookup(d.backup, "runtimes", name)); err != nil {
			return nil, err
		}
	}
	if config, err = decodeJSON(text); err != nil {
		return nil, err
	}
	if len(table(config, "runtimes")) == 0 && d.backup["runtimes"] == nil {
		if text, err = restoreMember(text, nil, "runtimes", nil); err != nil {
			return nil, err
		}
		delete(config, "runtimes")
	}
	if d.backup != nil && reflect.DeepEqual(config, d.backup) {
		return d.backupText, nil
	}
	return text, nil
}

// restoreMember sets a member of the object at path to an earlier value, or removes it.
func restoreMember(text []byte, path []string, name string, value any) ([]byte, error) {
	o, err := wholeObject(text)
	for _, key := range path {
		if err != nil {
			return nil, err
		}
		m := o.find(key)
		if m == nil {
			return text, nil
		}
		o, err = readObject(text, m.valStart)
	}
	if err != nil {
		return nil, err
	}
	if value == nil {
		return removeMember(text, o, name), nil
	}
	return setMember(text, o, name, value)
}

// setNested sets a member of an object that is a member of the whole.
func setNested(text []byte, outer, inner string, value any) ([]byte, error) {
	o, err := wholeObject(text)
	if err != nil {
		return nil, err
	}
	m := o.find(outer)
	if m == nil {
		return setMember(text, o, outer, map[string]any{inner: value})
	}
	if o, err = readObject(text, m.valStart); err != nil {
		return nil, err
	}
	return setMember(text, o, inner, value)
}

func shortJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return errors.New("unprintable").Error()
	}
	if len(data) > 256 {
		data = append(data[:256], "…"...)
	}
	return string(data)
}
