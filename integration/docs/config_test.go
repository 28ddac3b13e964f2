package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// setting is one key of the configuration with its default as TOML.
type setting struct{ key, value string }

// settings lists the keys of config.Config in order.
func settings(t *testing.T) []setting {
	t.Helper()
	var out []setting
	c := reflect.ValueOf(config.Default()).Elem()
	for i := range c.NumField() {
		section := c.Type().Field(i).Tag.Get("toml")
		for j := range c.Field(i).NumField() {
			key := section + "." + c.Field(i).Type().Field(j).Tag.Get("toml")
			out = append(out, setting{key, inTOML(t, c.Field(i).Field(j))})
		}
	}
	return out
}

func inTOML(t *testing.T, v reflect.Value) string {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		return strconv.Quote(v.String())
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Slice:
		var items []string
		for i := range v.Len() {
			items = append(items, inTOML(t, v.Index(i)))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	t.Fatalf("no rule for a %v in the documentation", v.Kind())
	return ""
}

func TestEveryKeyIsDocumentedWithItsDefault(t *testing.T) {
	documented := map[string]string{}
	for _, row := range rows(page(t, "docs/configuration.md"), "Key") {
		documented[code(row[0])] = code(row[1])
	}
	for _, s := range settings(t) {
		value, ok := documented[s.key]
		if !ok {
			t.Errorf("docs/configuration.md has no row for %s", s.key)
		} else if value != s.value {
			t.Errorf("docs/configuration.md: the default of %s is %s, not %s", s.key, s.value, value)
		}
		delete(documented, s.key)
	}
	for key := range documented {
		t.Errorf("docs/configuration.md: there is no key %s", key)
	}
}

func TestSampleConfigurationIsTheDefault(t *testing.T) {
	text := page(t, "docs/config.toml")
	// A clone may be group-writable, which Load refuses.
	name := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := config.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	if len(got.Host.DriverLibraries) == 0 {
		got.Host.DriverLibraries = want.Host.DriverLibraries
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("docs/config.toml gives\n%+v\nthe default is\n%+v", got, want)
	}
	var set map[string]map[string]any
	if err := toml.Unmarshal([]byte(text), &set); err != nil {
		t.Fatal(err)
	}
	for _, s := range settings(t) {
		section, key, _ := strings.Cut(s.key, ".")
		if _, ok := set[section][key]; !ok {
			t.Errorf("docs/config.toml does not set %s", s.key)
		}
	}
}

func TestEveryHandlerOptionIsDocumented(t *testing.T) {
	var documented []string
	for _, row := range rows(page(t, "docs/configuration.md"), "Option") {
		documented = append(documented, code(row[0]))
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "shim/options.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var options []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != "table" {
			return true
		}
		for _, f := range spec.Type.(*ast.StructType).Fields.List {
			name := f.Names[0].Name
			if f.Tag != nil {
				tag, _ := strconv.Unquote(f.Tag.Value)
				name = reflect.StructTag(tag).Get("toml")
			}
			options = append(options, name)
		}
		return false
	})
	slices.Sort(options)
	slices.Sort(documented)
	if len(options) == 0 || !slices.Equal(options, documented) {
		t.Errorf("shim/options.go knows\n%q\ndocs/configuration.md has\n%q", options, documented)
	}
}
