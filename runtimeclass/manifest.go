package runtimeclass

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

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
	// Overhead is what a pod costs beyond its containers: resource to quantity.
	Overhead map[string]string
}

var (
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	dnsName   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	labelName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	quantity  = regexp.MustCompile(`^([0-9]+(\.[0-9]*)?|\.[0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]+)?$`)
	effects   = []string{"", "NoSchedule", "PreferNoSchedule", "NoExecute"}
)

// ValidHandler returns an error unless name can be a RuntimeClass handler: a DNS label (RFC 1123),
// as the API server demands.
func ValidHandler(name string) error {
	if !dnsLabel.MatchString(name) {
		return fmt.Errorf("handler %.256q is not a DNS label: lower-case letters, digits and '-', at most 63", name)
	}
	return nil
}

// qualifiedName reports whether key can be that of a label or taint.
func qualifiedName(key string) bool {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		return labelName.MatchString(key)
	}
	return len(prefix) <= 253 && dnsName.MatchString(prefix) && labelName.MatchString(name)
}

func (m Manifest) validate() error {
	if len(m.Name) > 253 || !dnsName.MatchString(m.Name) {
		return fmt.Errorf("name %.256q is not a DNS name", m.Name)
	}
	for k, v := range m.NodeSelector {
		if !qualifiedName(k) || v != "" && !labelName.MatchString(v) {
			return fmt.Errorf("node selector %.256q is not a label", k+"="+v)
		}
	}
	for _, t := range m.Tolerations {
		if !qualifiedName(t.Key) || t.Value != "" && !labelName.MatchString(t.Value) {
			return fmt.Errorf("toleration %.256q is not a taint", t.Key+"="+t.Value)
		}
		if !slices.Contains(effects, t.Effect) {
			return fmt.Errorf("toleration of %q: effect %.256q is not one of %s", t.Key, t.Effect, strings.Join(effects[1:], ", "))
		}
	}
	for k, v := range m.Overhead {
		if !qualifiedName(k) || !quantity.MatchString(v) {
			return fmt.Errorf("overhead %.256q is not a resource and its quantity, as memory=16Mi", k+"="+v)
		}
	}
	return ValidHandler(m.Handler)
}

// YAML is the manifest for `kubectl apply -f`.
func (m Manifest) YAML() ([]byte, error) {
	if err := m.validate(); err != nil {
		return nil, err
	}
	object := map[string]any{
		"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": map[string]string{"name": m.Name}, "handler": m.Handler,
	}
	if len(m.Overhead) > 0 {
		object["overhead"] = map[string]any{"podFixed": m.Overhead}
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
