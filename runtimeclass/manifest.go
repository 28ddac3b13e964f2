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

// Manifest is a RuntimeClass of node.k8s.io/v1.
type Manifest struct {
	APIVersion string `yaml:"apiVersion"`
	// Handler is the name that containerd knows.
	Handler    string            `yaml:"handler"`
	Kind       string            `yaml:"kind"`
	Metadata   map[string]string `yaml:"metadata"`
	Scheduling Scheduling        `yaml:"scheduling,omitempty"`
}

// Scheduling is where pods of the class run.
type Scheduling struct {
	// NodeSelector keeps them on nodes that have the handler; elsewhere they fail with
	// `no runtime for "nvidia" is configured`.
	NodeSelector map[string]string `yaml:"nodeSelector,omitempty"`
	Tolerations  []Toleration      `yaml:"tolerations,omitempty"`
}

// Toleration lets pods of the class run on nodes with a taint.
type Toleration struct {
	Effect string `yaml:"effect,omitempty"`
	Key    string `yaml:"key"`
	// Operator is "Equal", or "Exists" for every value.
	Operator string `yaml:"operator"`
	Value    string `yaml:"value,omitempty"`
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

// YAML is the manifest of a RuntimeClass for `kubectl apply -f`. The API server checks the other
// values.
func (m Manifest) YAML() ([]byte, error) {
	if err := ValidHandler(m.Handler); err != nil {
		return nil, err
	}
	m.APIVersion, m.Kind = "node.k8s.io/v1", "RuntimeClass"
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := enc.Encode(m)
	return b.Bytes(), err
}
