package bundle

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// stages are the lists of hooks in the order of hookStages.
func stages(h *specs.Hooks) []*[]specs.Hook {
	//nolint:staticcheck // Prestart is deprecated and still what docker --gpus uses.
	return []*[]specs.Hook{&h.Prestart, &h.CreateRuntime, &h.CreateContainer, &h.StartContainer, &h.Poststart, &h.Poststop}
}

// setEnv sets variables. One that is there with another value goes: which of two
// counts depends on the program that reads them.
func (b *Bundle) setEnv(o *object, env []string) error {
	var have []string
	if b.Spec.Process != nil {
		have = b.Spec.Process.Env
	}
	var added []string
	names := map[string]bool{}
	for _, entry := range env {
		if !slices.Contains(have, entry) {
			name, _, _ := strings.Cut(entry, "=")
			names[name] = true
			added = append(added, entry)
		}
	}
	if len(added) == 0 {
		return nil
	}
	replaced := func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return names[name]
	}
	path := []string{"process", "env"}
	if err := o.edit(path, removing(replaced, func(string) {})); err != nil {
		return err
	}
	if err := o.edit(path, appending(added)); err != nil {
		return err
	}
	if b.Spec.Process == nil {
		b.Spec.Process = &Process{}
	}
	b.Spec.Process.Env = append(slices.DeleteFunc(have, replaced), added...)
	return nil
}

// addHooks adds the hooks that are not there yet.
func (b *Bundle) addHooks(o *object, hooks *specs.Hooks) error {
	if hooks == nil {
		return nil
	}
	if b.Spec.Hooks == nil {
		b.Spec.Hooks = &specs.Hooks{}
	}
	have := stages(b.Spec.Hooks)
	for i, stage := range stages(hooks) {
		added := slices.DeleteFunc(slices.Clone(*stage), func(h specs.Hook) bool {
			return slices.ContainsFunc(*have[i], func(x specs.Hook) bool { return reflect.DeepEqual(h, x) })
		})
		if len(added) == 0 {
			continue
		}
		if err := o.edit([]string{"hooks", hookStages[i]}, func(raw json.RawMessage) (json.RawMessage, error) {
			return appendElements(raw, added)
		}); err != nil {
			return err
		}
		*have[i] = append(*have[i], added...)
	}
	return nil
}
