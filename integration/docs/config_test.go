package docs

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	shimoptions "github.com/containerd-shim-nvidia/containerd-shim-nvidia/shim/options"
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
			if key := c.Field(i).Type().Field(j).Tag.Get("toml"); key != "-" {
				out = append(out, setting{section + "." + key, inTOML(t, c.Field(i).Field(j))})
			}
		}
	}
	return out
}

// inTOML writes a value as the pages do, which JSON does too.
func inTOML(t *testing.T, v reflect.Value) string {
	t.Helper()
	if v.Kind() == reflect.Slice && v.Len() == 0 {
		return "[]"
	}
	text, err := json.Marshal(v.Interface())
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), `","`, `", "`)
}

// The configuration of the packages sets nothing, and each line that loses its mark sets that key.
func TestThePackagedConfigurationIsTheSampleAsComments(t *testing.T) {
	edit := regexp.MustCompile(`(?m)^sed '(.*)' \.\./docs/config\.toml`).FindStringSubmatch(page(t, "packaging/build.sh"))
	if edit == nil {
		t.Fatal("packaging/build.sh does not make the configuration with sed")
	}
	sample := page(t, "docs/config.toml")
	cmd := exec.Command("sed", edit[1])
	cmd.Stdin = strings.NewReader(sample)
	packaged, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	decode := func(text string) (tables map[string]map[string]any) {
		t.Helper()
		if err := toml.Unmarshal([]byte(text), &tables); err != nil {
			t.Fatal(err)
		}
		return tables
	}
	all := decode(sample)
	for name, table := range decode(string(packaged)) {
		if len(table) > 0 {
			t.Errorf("[%s] sets %v", name, table)
		}
	}
	for name, table := range all {
		for key, want := range table {
			mark := regexp.MustCompile(`(?m)^# (` + key + ` = .*)$`)
			if lines := mark.FindAllString(string(packaged), -1); len(lines) != 1 {
				continue // a key of several tables or lines
			}
			if got := decode(mark.ReplaceAllString(string(packaged), "$1"))[name][key]; !reflect.DeepEqual(got, want) {
				t.Errorf("[%s] %s is %v, want %v", name, key, got, want)
			}
		}
	}
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
	want.Host.DriverLibraries = []string{}
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
		for name := range strings.SplitSeq(row[0], ", ") {
			documented = append(documented, code(name))
		}
	}
	var options []string
	table := reflect.TypeFor[shimoptions.Table]()
	for i := range table.NumField() {
		options = append(options, cmp.Or(table.Field(i).Tag.Get("toml"), table.Field(i).Name))
	}
	slices.Sort(options)
	slices.Sort(documented)
	if len(options) == 0 || !slices.Equal(options, documented) {
		t.Errorf("the shim has\n%q\ndocs/configuration.md has\n%q", options, documented)
	}
}

var quoted = regexp.MustCompile("`([^`]+)`")

func TestEveryDeviceClassIsDocumented(t *testing.T) {
	var documented []string
	for _, row := range rows(page(t, "docs/environment.md"), "Variable") {
		if len(row) == 3 {
			variable, _, _ := strings.Cut(strings.Trim(row[0], "`"), "=")
			documented = append(documented, variable+" "+strings.Trim(row[1], "`"))
		}
	}
	for _, c := range devnode.Classes {
		if want := c.Variable + " " + c.Name; !slices.Contains(documented, want) {
			t.Errorf("docs/environment.md has no row %q: %q", want, documented)
		}
		if !c.Numbered && !strings.Contains(page(t, "docs/environment.md"), "`"+c.CDIKind+"=all`") {
			t.Errorf("docs/environment.md does not have the CDI name %s=all", c.CDIKind)
		}
	}
	if want := "Of `" + strings.Join(devnode.Names(), "`, `") + "`: "; !strings.Contains(page(t, "docs/configuration.md"), want) {
		t.Errorf("docs/configuration.md does not have %q", want)
	}
}

func TestEveryFieldOfTheRecordIsDocumented(t *testing.T) {
	var documented []string
	for _, row := range rows(page(t, "docs/troubleshooting.md"), "Field") {
		for _, m := range quoted.FindAllStringSubmatch(row[0], -1) {
			documented = append(documented, m[1])
		}
	}
	var fields []string
	plan := reflect.TypeFor[gpuinject.Plan]()
	for i := range plan.NumField() {
		if name, _, _ := strings.Cut(plan.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			fields = append(fields, name)
		}
	}
	slices.Sort(fields)
	slices.Sort(documented)
	if len(fields) == 0 || !slices.Equal(fields, documented) {
		t.Errorf("the record has\n%q\ndocs/troubleshooting.md has\n%q", fields, documented)
	}
}
