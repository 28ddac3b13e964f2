package runtimeclass

import (
	"bytes"
	"fmt"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// DefaultHandler is the default name of the handler and the RuntimeClass. NVIDIA's device plugin
// and operator charts use it as well.
const DefaultHandler = "nvidia"

// Toleration lets pods of the class run on nodes with a taint. An empty Value matches every value.
type Toleration struct {
	Key, Value, Effect string
}

// Manifest is a RuntimeClass of node.k8s.io/v1.
type Manifest struct {
	// Name of the object, and Handler as containerd knows it.
	Name, Handler string
	// NodeSelector keeps its pods on nodes that have the handler; elsewhere they fail with
	// `no runtime for "nvidia" is configured`.
	NodeSelector map[string]string
	Tolerations  []Toleration
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// ValidHandler returns an error unless name can be a RuntimeClass handler: a DNS label (RFC 1123),
// as the API server demands.
func ValidHandler(name string) error {
	if !dnsLabel.MatchString(name) {
		return fmt.Errorf("handler %.256q is not a DNS label: lower-case letters, digits and '-', at most 63", name)
	}
	return nil
}

// YAML is the manifest for `kubectl apply -f`. The API server checks the other values.
func (m Manifest) YAML() ([]byte, error) {
	if err := ValidHandler(m.Handler); err != nil {
		return nil, err
	}
	object := map[string]any{
		"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": map[string]string{"name": m.Name}, "handler": m.Handler,
	}
	scheduling := map[string]any{}
	if len(m.NodeSelector) > 0 {
		scheduling["nodeSelector"] = m.NodeSelector
	}
	var tolerations []map[string]string
	for _, t := range m.Tolerations {
		toleration := map[string]string{"key": t.Key, "operator": "Exists"}
		if t.Value != "" {
			toleration["operator"], toleration["value"] = "Equal", t.Value
		}
		if t.Effect != "" {
			toleration["effect"] = t.Effect
		}
		tolerations = append(tolerations, toleration)
	}
	if len(tolerations) > 0 {
		scheduling["tolerations"] = tolerations
	}
	if len(scheduling) > 0 {
		object["scheduling"] = scheduling
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := enc.Encode(object)
	return b.Bytes(), err
}
