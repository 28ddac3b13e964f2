package kubelet

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// message encodes fields of strings or of messages: number, value, number, value …
func message(list ...any) []byte {
	var b []byte
	for i := 0; i < len(list); i += 2 {
		b = protowire.AppendTag(b, protowire.Number(list[i].(int)), protowire.BytesType)
		switch v := list[i+1].(type) {
		case string:
			b = protowire.AppendString(b, v)
		case []byte:
			b = protowire.AppendBytes(b, v)
		}
	}
	return b
}

func encoded(t *testing.T, b []byte) json.RawMessage {
	t.Helper()
	data, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The forms of HAMi 2.10, Volcano's vGPU plugin, NVIDIA's device plugin 0.19 and of others.
func TestAnswered(t *testing.T) {
	env := func(name, value string) []byte { return message(1, name, 2, value) }
	visible := func(value string) []byte { return env("NVIDIA_VISIBLE_DEVICES", value) }
	for _, tc := range []struct {
		name string
		resp []byte
		want []string
	}{
		{"HAMi: variables", message(1, env("CUDA_DEVICE_MEMORY_LIMIT_0", "1024m"), 1, visible("GPU-a,GPU-b"), 2, message(1, "/tmp/vgpulock", 2, "/tmp/vgpulock")), []string{"GPU-a", "GPU-b"}},
		{"a MIG device", message(1, visible("MIG-c")), []string{"MIG-c"}},
		{"CDI devices", message(5, message(1, "nvidia.com/gpu=GPU-a"), 5, message(1, "k8s.device-plugin.nvidia.com/gpu=GPU-b")), []string{"GPU-a", "GPU-b"}},
		{"CDI devices of other classes of GPUs", message(5, message(1, "nvidia.com/gpu.coherent=GPU-a"), 5, message(1, "k8s.device-plugin.nvidia.com/mig-1g.18gb=MIG-b")), []string{"GPU-a", "MIG-b"}},
		{"CDI names in the variable, with blanks", message(1, visible("k8s.device-plugin.nvidia.com/gpu=GPU-a, GPU-b ,example.com/nic=c")), []string{"GPU-a", "GPU-b"}},
		{"CDI annotations", message(4, env("cdi.k8s.io/nvidia-device-plugin_x", "nvidia.com/gpu=GPU-a,nvidia.com/gpu=GPU-b")), []string{"GPU-a", "GPU-b"}},
		{"device-list mounts", message(1, visible("/var/run/nvidia-container-devices"), 2, message(1, "/var/run/nvidia-container-devices/GPU-a")), nil},
		{"device-list mounts alone", message(2, message(1, "/var/run/nvidia-container-devices/GPU-a", 2, "/dev/null")), []string{"GPU-a"}},
		{"the same GPU in two ways", message(1, visible("GPU-a"), 5, message(1, "nvidia.com/gpu=GPU-a")), []string{"GPU-a"}},
		{"void beside CDI", message(1, visible("void"), 5, message(1, "nvidia.com/gpu=GPU-a")), []string{"GPU-a"}},
		{"an index", message(1, visible("0")), nil},
		{"all", message(1, visible("all")), nil},
		{"a UUID and an index", message(1, visible("GPU-a,1")), nil},
		{"a CDI device of another class", message(5, message(1, "nvidia.com/gds=all")), nil},
		{"another vendor's CDI device", message(5, message(1, "example.com/gpu=GPU-a")), nil},
		{"a vendor that only looks alike", message(5, message(1, "notnvidia.com/gpu=GPU-a")), nil},
		{"device nodes alone", message(3, message(1, "/dev/nvidia0", 2, "/dev/nvidia0", 3, "rw")), nil},
		{"nothing", nil, nil},
		{"malformed", []byte{0x0a, 0x7f, 'x'}, nil},
		{"too many", message(1, visible(strings.Repeat("GPU-a,", maxAnswered+1))), nil},
	} {
		if got := answered(encoded(t, tc.resp)); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
	for _, raw := range []string{"", "null", `"not base64"`, "1"} {
		if got := answered(json.RawMessage(raw)); got != nil {
			t.Errorf("%q: got %q", raw, got)
		}
	}
}

// What the plugin answered goes before the ids, for the entry that has it.
func TestAnAnswerGoesBeforeTheIDs(t *testing.T) {
	entry := func(uid, container, resource, id string, resp []byte) string {
		return fmt.Sprintf(`{"PodUID":%q,"ContainerName":%q,"ResourceName":%q,"DeviceIDs":{"-1":[%q]},"AllocResp":%s}`, uid, container, resource, id, encoded(t, resp))
	}
	gpu := func(uuid string) []byte { return message(1, message(1, "NVIDIA_VISIBLE_DEVICES", 2, uuid)) }
	file := write(t, `{"Data":{"PodDeviceEntries":[`+strings.Join([]string{
		entry("0b3e", "main", "nvidia.com/gpu", "GPU-a-3", gpu("GPU-b")),
		entry("0b3e", "main", "nvidia.com/gpumem", "0", nil),
		entry("0b3e", "vgpu", "volcano.sh/vgpu-number", "GPU-c-1", gpu("GPU-c")),
		entry("0b3e", "index", "nvidia.com/gpu", "GPU-d", gpu("0")),
		entry("0b3e", "nic", "example.com/nic", "GPU-e", nil),
		entry("other", "main", "nvidia.com/gpu", "GPU-f", gpu("GPU-f")),
	}, ",")+`],"RegisteredDevices":{}},"Checksum":1}`)
	got, err := readPod(file, "0b3e")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got["main"])
	if want := map[string][]string{"main": {"0", "GPU-b"}, "vgpu": {"GPU-c"}, "index": {"GPU-d"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
