package toolkit

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
)

// Paths are where the toolkit's file is: that of its packages, and that of the toolkit container of
// NVIDIA's operator.
var Paths = []string{
	"/etc/nvidia-container-runtime/config.toml",
	"/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
}

// Option is one option that the toolkit's file sets.
type Option struct {
	// Key is dotted: "nvidia-container-cli.root". Value is in TOML.
	Key   string `json:"key"`
	Value string `json:"value"`
	State string `json:"state"`
	// To is the shim's setting: "host.driver-root".
	To  string `json:"to,omitempty"`
	Why string `json:"why,omitempty"`
}

// Report says what becomes of a file.
type Report struct {
	// From is the toolkit's file.
	From    string   `json:"from"`
	Options []Option `json:"options"`
	// Notes are about options that are not in the file, and about defaults that differ.
	Notes []string `json:"notes"`
	// Text is the shim's configuration, "" if nothing was carried over; To is the file for it.
	Text string `json:"text"`
	To   string `json:"to"`
}

// Read converts the first existing file of names below root. The result is for the shim's file to.
func Read(root string, names []string, to string) (Report, error) {
	for _, name := range names {
		text, err := hosttree.Tree{Root: root}.Read(name)
		if err != nil {
			return Report{}, err
		}
		if text == nil {
			continue
		}
		r, err := Convert(root, text)
		if err != nil {
			return Report{}, fmt.Errorf("%s: %w", name, err)
		}
		r.From, r.To = name, to
		return r, nil
	}
	return Report{}, fmt.Errorf("no configuration of NVIDIA's toolkit at %s: name it with --toolkit-config, or leave the flag out", strings.Join(names, " or "))
}

// Convert converts the text of the toolkit's file. root is the root of the paths in it.
func Convert(root string, text []byte) (Report, error) {
	values, err := flatten(text)
	if err != nil {
		return Report{}, err
	}
	defaultText, err := toml.Marshal(config.Default())
	if err != nil {
		return Report{}, err
	}
	defaults, err := flatten(defaultText)
	if err != nil {
		return Report{}, err
	}
	mode, settings := values[keyMode], map[string]any{}
	if mode == nil {
		mode = defaultMode
		maps.Copy(settings, unrestricted)
	}
	r := Report{Options: []Option{}, Notes: notes(values, mode)}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		became := convert(root, mode, key, values[key])
		keys := slices.Sorted(maps.Keys(became.settings))
		for _, k := range keys {
			if inTOML(became.settings[k]) != inTOML(defaults[k]) {
				settings[k] = became.settings[k]
				became.state = cmp.Or(became.state, Carried)
			}
		}
		r.Options = append(r.Options, Option{
			Key: key, Value: inTOML(values[key]), State: cmp.Or(became.state, Default), To: strings.Join(keys, ", "), Why: became.why,
		})
	}
	r.Text, err = write(settings)
	return r, err
}

// flatten decodes TOML into values by dotted keys. An empty table sets nothing.
func flatten(text []byte) (map[string]any, error) {
	var tree map[string]any
	if err := config.Decode(text, &tree); err != nil {
		return nil, err
	}
	values := map[string]any{}
	addValues(values, "", tree)
	return values, nil
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func addValues(values map[string]any, prefix string, tree map[string]any) {
	for key, value := range tree {
		if !bareKey.MatchString(key) {
			key = strconv.Quote(key)
		}
		if sub, ok := value.(map[string]any); ok {
			addValues(values, prefix+key+".", sub)
		} else {
			values[prefix+key] = value
		}
	}
}

// notes returns notes about defaults that differ between the toolkit and the shim.
func notes(values map[string]any, mode any) []string {
	notes := []string{}
	if slices.Contains(unrestrictedModes, mode) {
		notes = append(notes, fmt.Sprintf("the toolkit's mode %q ignores NVIDIA_REQUIRE_* and NVIDIA_DRIVER_CAPABILITIES: policy.disable-require and container.default-capabilities keep requirements unchecked and give all capabilities by default; to be stricter, remove the two settings", mode))
	}
	if _, ok := values[keyMounts]; !ok {
		notes = append(notes, "device-list mounts are accepted here unless policy.accept-volume-mounts = false; the toolkit's default is not to")
	}
	if _, ok := values[keyLoad]; !ok {
		notes = append(notes, "the toolkit loads kernel modules at each container; here `nvidia-shimctl prepare` does, with host.load-kernel-modules = true")
	}
	return append(notes, "in Kubernetes the environment of a container selects among its allocated GPUs and grants none, whatever the toolkit's file says: policy.kubernetes")
}

func write(settings map[string]any) (string, error) {
	tables := map[string]map[string]any{}
	for key, value := range settings {
		table, name, _ := strings.Cut(key, ".")
		if tables[table] == nil {
			tables[table] = map[string]any{}
		}
		tables[table][name] = value
	}
	text, err := toml.Marshal(tables)
	return string(text), err
}

func inTOML(value any) string {
	text, err := toml.Marshal(map[string]any{"v": value})
	if err != nil {
		return fmt.Sprint(value)
	}
	return strings.ReplaceAll(strings.TrimSpace(strings.TrimPrefix(string(text), "v = ")), "\n", " ")
}
