package runtimeclass

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// DefaultHandler is the handler's and the RuntimeClass's name unless told otherwise.
// NVIDIA's device plugin and operator charts use it as well.
const DefaultHandler = "nvidia"

// Toleration lets pods of the class run on nodes with a taint. An empty Value means
// that the taint's value does not matter.
type Toleration struct {
	Key, Value, Effect string
}

// Manifest is a RuntimeClass of node.k8s.io/v1.
type Manifest struct {
	// Name of the object, and Handler as containerd knows it: DNS labels.
	Name, Handler string
	// NodeSelector keeps its pods on nodes that have the handler; elsewhere they fail
	// with `no runtime for "nvidia" is configured`.
	NodeSelector map[string]string
	Tolerations  []Toleration
	// Overhead is what a pod costs beyond its containers: resource to quantity.
	Overhead map[string]string
}

var (
	dnsLabel   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	dnsName    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	labelName  = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	quantity   = regexp.MustCompile(`^([0-9]+(\.[0-9]*)?|\.[0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]+)?$`)
	taintTypes = []string{"", "NoSchedule", "PreferNoSchedule", "NoExecute"}
)

// ValidHandler tells whether name can be a RuntimeClass handler: a DNS label
// (RFC 1123), as the API server demands.
func ValidHandler(name string) error {
	if !dnsLabel.MatchString(name) {
		return fmt.Errorf("handler %.256q is not a DNS label: lower-case letters, digits and '-', at most 63", name)
	}
	return nil
}

// qualifiedName checks the key of a label or taint.
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
	if err := ValidHandler(m.Handler); err != nil {
		return err
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
		if !slices.Contains(taintTypes, t.Effect) {
			return fmt.Errorf("toleration of %q: effect %.256q is not one of %s", t.Key, t.Effect, strings.Join(taintTypes[1:], ", "))
		}
	}
	for k, v := range m.Overhead {
		if !qualifiedName(k) || !quantity.MatchString(v) {
			return fmt.Errorf("overhead %.256q is not a resource and its quantity, as memory=16Mi", k+"="+v)
		}
	}
	return nil
}

// YAML is the manifest for `kubectl apply -f`.
func (m Manifest) YAML() ([]byte, error) {
	if m.Name == "" && m.Handler == "" {
		return nil, errors.New("a RuntimeClass needs a name and a handler")
	}
	if err := m.validate(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata:\n  name: %s\nhandler: %s\n", quote(m.Name), quote(m.Handler))
	if len(m.Overhead) > 0 {
		b.WriteString("overhead:\n  podFixed:\n")
		writeMap(&b, "    ", m.Overhead)
	}
	if len(m.NodeSelector)+len(m.Tolerations) > 0 {
		b.WriteString("scheduling:\n")
	}
	if len(m.NodeSelector) > 0 {
		b.WriteString("  nodeSelector:\n")
		writeMap(&b, "    ", m.NodeSelector)
	}
	if len(m.Tolerations) > 0 {
		b.WriteString("  tolerations:\n")
	}
	for _, t := range m.Tolerations {
		fmt.Fprintf(&b, "  - key: %s\n", quote(t.Key))
		if t.Value == "" {
			b.WriteString("    operator: Exists\n")
		} else {
			fmt.Fprintf(&b, "    operator: Equal\n    value: %s\n", quote(t.Value))
		}
		if t.Effect != "" {
			fmt.Fprintf(&b, "    effect: %s\n", t.Effect)
		}
	}
	return b.Bytes(), nil
}

func writeMap(b *bytes.Buffer, indent string, m map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(b, "%s%s: %s\n", indent, quote(k), quote(m[k]))
	}
}

// quote is a double-quoted scalar: JSON strings are YAML, and a bare "true" or "12"
// would not be a string.
func quote(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	// A string always encodes.
	_ = enc.Encode(s)
	return strings.TrimSuffix(b.String(), "\n")
}
