package policy

import (
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

func TestDecideOthers(t *testing.T) {
	other := func(name string, minor uint32, one bool) device.Other {
		return device.Other{Node: device.Node{Path: name, Major: 231, Minor: minor}, One: one}
	}
	nodes := []device.Other{other("verbs0", 0, true), other("verbs1", 1, true), other("cm", 9, false)}
	for _, tc := range []struct {
		name    string
		grant   Grant
		spec    []Number
		allow   string
		mounted bool
		want    string
	}{
		{"the environment grants where it grants GPUs", Grant{All: true}, nil, "", false, "all"},
		{"a GPU that was allocated grants nothing else", Grant{Set: device.Set{GPUs: gpus}}, []Number{{Major: 195, Minor: 0}}, "", false, ""},
		{"the operator allows the class", Grant{Set: device.Set{GPUs: gpus}}, nil, "mofed", false, "all"},
		{"the operator allows another class", Grant{Set: device.Set{GPUs: gpus}}, nil, "imex", false, ""},
		{"device-list mounts grant", Grant{Set: device.Set{GPUs: gpus}}, nil, "", true, "all"},
		{"a node of the class in the specification brings what all share", Grant{Set: device.Set{GPUs: gpus}}, []Number{{Major: 231, Minor: 1}}, "", false, "verbs1 cm"},
		{"what all share brings no node that is handed out by itself", Grant{Set: device.Set{GPUs: gpus}}, []Number{{Major: 231, Minor: 9}}, "", false, "cm"},
		{"a node of the same minor and another major is none of the class", Grant{Set: device.Set{GPUs: gpus}}, []Number{{Major: 195, Minor: 1}}, "", false, ""},
		{"nothing at all", Grant{}, nil, "", false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := config.Default().Policy
			if tc.allow != "" {
				p.AllowFromEnvironment = []string{tc.allow}
			}
			tc.grant.Reason = "the grant"
			got := DecideOthers(p, Container{Kubernetes: true, Nodes: tc.spec}, tc.grant, "mofed", nodes, tc.mounted)
			var names []string
			for _, n := range got.Nodes {
				names = append(names, n.Path)
			}
			if got.All {
				names = append(names, "all")
			}
			if s := strings.Join(names, " "); s != tc.want || got.Reason == "" {
				t.Errorf("got %q (%s), want %q", s, got.Reason, tc.want)
			}
		})
	}
}
