package shim

import (
	"encoding/json"
	"reflect"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
)

func TestWithoutDevices(t *testing.T) {
	const typeURL = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources"
	for _, tc := range []struct{ name, in, want string }{
		{"devices go, the rest stays", `{"devices":[{"allow":false,"access":"rwm"}],"memory":{"limit":1},"unknown":{"a":[1]}}`, `{"memory":{"limit":1},"unknown":{"a":[1]}}`},
		{"only devices", `{"devices":[]}`, `{}`},
		{"devices that are null", `{"devices":null,"cpu":{"shares":2}}`, `{"cpu":{"shares":2}}`},
		{"without devices nothing changes", `{"cpu": {"shares": 9007199254740993}}`, `{"cpu": {"shares": 9007199254740993}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := &anypb.Any{TypeUrl: typeURL, Value: []byte(tc.in)}
			out := withoutDevices(in)
			if out.TypeUrl != typeURL {
				t.Errorf("type %q", out.TypeUrl)
			}
			var got, want map[string]any
			if json.Unmarshal(out.Value, &got) != nil || json.Unmarshal([]byte(tc.want), &want) != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %s, want %s", out.Value, tc.want)
			}
			if string(in.Value) != tc.in {
				t.Errorf("the request was changed: %s", in.Value)
			}
		})
	}
	for _, in := range []*anypb.Any{nil, {}, {TypeUrl: typeURL, Value: []byte("not json")}, {TypeUrl: typeURL, Value: []byte("[]")}, {TypeUrl: typeURL, Value: []byte("null")}} {
		if out := withoutDevices(in); out != in {
			t.Errorf("%v became %v", in, out)
		}
	}
}

// FuzzUpdate holds that an update loses its devices and nothing else.
func FuzzUpdate(f *testing.F) {
	f.Add([]byte(`{"devices":[{"allow":false}],"memory":{"limit":9007199254740993},"<":{"x":1e999}}`))
	f.Add([]byte(`{"devices":1,"devices":2,"Devices":3,"\ud800":null}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		out := withoutDevices(&anypb.Any{Value: value})
		var was, is map[string]json.RawMessage
		if json.Unmarshal(value, &was) != nil {
			if string(out.Value) != string(value) {
				t.Fatalf("%q became %q", value, out.Value)
			}
			return
		}
		if err := json.Unmarshal(out.Value, &is); err != nil {
			t.Fatal(err)
		}
		delete(was, "devices")
		if len(was) != len(is) {
			t.Fatalf("%q became %q", value, out.Value)
		}
		for key, text := range was {
			var a, b any
			if json.Unmarshal(text, &a) == nil && (json.Unmarshal(is[key], &b) != nil || !reflect.DeepEqual(a, b)) {
				t.Fatalf("%q became %q", value, out.Value)
			}
		}
	})
}
