package docs

import (
	"fmt"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

const chartDir = "deploy/helm/nvidia-shim/"

// values flattens the values of the chart. Objects that are the API's own are one value.
func values(out map[string]string, prefix string, node map[string]any) {
	for key, value := range node {
		sub, ok := value.(map[string]any)
		if ok && !slices.Contains([]string{"resources", "nodeSelector", "affinity", "labels"}, key) {
			values(out, prefix+key+".", sub)
			continue
		}
		out[prefix+key] = ""
		switch value := value.(type) {
		case nil:
			out[prefix+key] = "null"
		case string:
			out[prefix+key] = value
		case bool, int:
			out[prefix+key] = fmt.Sprint(value)
		}
	}
}

func TestTheChartsReadmeHasEveryValue(t *testing.T) {
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(page(t, chartDir+"values.yaml")), &tree); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	values(want, "", tree)
	for _, row := range rows(page(t, chartDir+"README.md"), "Value") {
		name, value := code(row[0]), code(row[1])
		before, ok := want[name]
		if !ok {
			t.Errorf("the chart has no value %s", name)
		} else if before != "" && value != before {
			t.Errorf("%s is %q by default, not %q", name, before, value)
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("README.md of the chart lacks %s", name)
	}
}
