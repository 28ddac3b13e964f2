package runtimeclass

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// The markers are comments at the beginning of a line. The lines between blockBegin and blockEnd
// are ours; a line with switchedOff is the operator's, and comes back.
const (
	blockBegin  = "# >>> nvidia-shim: written by `nvidia-shimctl install`, removed by `nvidia-shimctl uninstall`"
	blockEnd    = "# <<< nvidia-shim"
	switchedOff = "# nvidia-shim was: "
)

// block encloses body, whole lines, in our markers.
func block(body string) string { return blockBegin + "\n" + body + blockEnd + "\n" }

// withLineEnd ends the last line of a text, so that lines can follow.
func withLineEnd(text []byte) []byte {
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		return slices.Concat(text, []byte("\n"))
	}
	return text
}

// strip removes the lines that an installation put into a text, and gives those back that it
// switched off. Only the end of the last line may be left. nil stays nil.
func strip(text []byte) ([]byte, error) {
	if text == nil {
		return nil, nil
	}
	out := []byte{}
	inside := false
	for line := range bytes.Lines(text) {
		bare := string(bytes.TrimRight(line, "\r\n"))
		switch {
		case inside:
			inside = bare != blockEnd
		case strings.HasPrefix(bare, blockBegin):
			inside = true
		default:
			out = append(out, bytes.TrimPrefix(line, []byte(switchedOff))...)
		}
	}
	if inside {
		return nil, fmt.Errorf("the line %q has no %q after it: put it back, or remove our lines by hand", blockBegin, blockEnd)
	}
	return out, nil
}

// addHandlers adds the handlers that earlier installations put into files, and their default, to what
// to register. keep reports whether a handler can stay.
func (o *Options) addHandlers(texts [][]byte, keep func(name string) bool) {
	o.handlers = []string{o.Registration.Handler}
	for _, text := range texts {
		for _, name := range ownHandlers(text) {
			if !slices.Contains(o.handlers, name) && keep(name) {
				o.handlers = append(o.handlers, name)
			}
		}
	}
	slices.Sort(o.handlers)
	o.defaultHandler = ownDefault(texts)
	switch {
	case o.Registration.Default:
		o.defaultHandler = o.Registration.Handler
	case o.DropDefault || !slices.Contains(o.handlers, o.defaultHandler):
		o.defaultHandler = ""
	}
}

// registers reports whether an earlier installation put a handler into one of the files.
func registers(texts [][]byte, handler string) bool {
	return slices.ContainsFunc(texts, func(text []byte) bool { return slices.Contains(ownHandlers(text), handler) })
}

// ownDefault returns the default runtime that an earlier installation set in one of the files, or "".
func ownDefault(texts [][]byte) (name string) {
	for _, text := range texts {
		for line := range bytes.Lines(ownLines(text)) {
			if m, err := decode(line); err == nil && m["default_runtime_name"] != nil {
				name, _ = m["default_runtime_name"].(string)
			}
		}
	}
	return name
}

// ownLines returns the lines that are ours.
func ownLines(text []byte) (ours []byte) {
	inside := false
	for line := range bytes.Lines(text) {
		switch {
		case bytes.HasPrefix(line, []byte(blockBegin)):
			inside = true
		case bytes.HasPrefix(line, []byte(blockEnd)):
			inside = false
		case inside:
			ours = append(ours, line...)
		}
	}
	return ours
}

// ownHandlers returns the handlers in the lines that are ours.
func ownHandlers(text []byte) (names []string) {
	// A block that cannot be read names no handler: what comes of it is checked.
	config, _ := decode(ownLines(text))
	for plugin := range table(config, "plugins") {
		runtimes := table(config, "plugins", plugin, "containerd", "runtimes")
		for name := range runtimes {
			r := table(runtimes, name)
			typ, _ := r["runtime_type"].(string)
			file, _ := r["runtime_path"].(string)
			if (Runtime{Type: typ, Path: file}).Ours() {
				names = append(names, name)
			}
		}
	}
	return names
}

// registerInTOML adds the handlers to a configuration file of containerd.
func (p *Plan) registerInTOML(o Options, name string, form Runtime) error {
	f, err := p.Host.loadFile(name, false)
	if err != nil {
		return err
	}
	body := ""
	if len(f.original) == 0 {
		body = fmt.Sprintf("version = %d\n", f.version)
	}
	section := []string{"plugins", f.plugin, "containerd"}
	present := table(f.cri(), "containerd", "runtimes")
	current, _ := table(f.cri(), "containerd")["default_runtime_name"].(string)

	// containerd 1.7 forgets its built-in runtime if a file names another one.
	stock := cmp.Or(current, "runc")
	if f.version <= 2 && !p.Host.Daemon.AtLeast(2, 0, 0) && len(present) == 0 && !slices.Contains(o.handlers, stock) {
		body += Runtime{Type: stockType}.tables(f.plugin, stock)
		p.note("the runtime %q is written out, because containerd 1.7 has no built-in runtime beside one that a file names", stock)
	}
	edited := withLineEnd(f.original)
	for _, handler := range o.handlers {
		body += form.tables(f.plugin, handler)
		if old := present[handler]; old != nil {
			edited = switchOff(edited, append(slices.Clone(section), "runtimes", handler))
			delete(present, handler)
			p.note("the runtime %q (%s) is switched off by comments until uninstall", handler, describe(old))
		}
	}
	// added is the text that the file is to get.
	added := body
	if name := o.defaultHandler; name != "" && current != name {
		added += defaultTable(f.plugin, name)
		var found bool
		if edited, found = setDefault(edited, section, name); !found {
			body = added
		}
	}
	after := slices.Concat(edited, []byte(block(body)))
	if err := checkResult(after, f.config, added); err != nil {
		return fmt.Errorf("%s: the tables of this file cannot be extended by further lines (%w): add by hand\n%s", name, err, added)
	}
	return p.edit(o, f.configFile, after)
}

// checkResult returns an error unless text says what is in the tables and in added, and no more.
func checkResult(text []byte, tables map[string]any, added string) error {
	more, err := decode([]byte(added))
	if err != nil {
		return err
	}
	merge(tables, more)
	got, err := decode(text)
	if err == nil && !reflect.DeepEqual(got, tables) {
		err = errors.New("the edited file would not hold the changes")
	}
	return err
}

// The next two functions find tables by the lines of their headers, which is not all of TOML:
// registerInTOML compares the result with what it wants.

// switchOff turns a table, and the tables below it, into comments.
func switchOff(text []byte, path []string) []byte {
	var out []byte
	var current []string
	for line := range bytes.Lines(text) {
		if header := tableHeader(line); header != nil {
			current = header
		}
		if len(current) >= len(path) && slices.Equal(current[:len(path)], path) {
			out = append(out, switchedOff...)
		}
		out = append(out, line...)
	}
	return out
}

// setDefault sets default_runtime_name below the header of section, in place of the present one. It
// reports whether there is such a header.
func setDefault(text []byte, section []string, name string) (out []byte, found bool) {
	var current []string
	for line := range bytes.Lines(text) {
		header := tableHeader(line)
		if header != nil {
			current = header
		}
		inside := slices.Equal(current, section)
		if m, err := decode(line); inside && err == nil && m["default_runtime_name"] != nil {
			out = append(out, switchedOff...)
		}
		out = append(out, line...)
		if inside && header != nil {
			found = true
			out = append(out, block(fmt.Sprintf("  default_runtime_name = %q\n", name))...)
		}
	}
	return out, found
}

// tableHeader is the path of the table whose header the line is; nil for other lines.
func tableHeader(line []byte) []string {
	if !bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("[")) {
		return nil
	}
	m, err := decode(line)
	if err != nil {
		return nil
	}
	var path []string
	for len(m) > 0 {
		for key := range m {
			path, m = append(path, key), table(m, key)
		}
	}
	return path
}
