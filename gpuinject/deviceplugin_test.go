package gpuinject

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// pluginAnswered is an answer of NVIDIA's device plugin: integration/kubernetes/answers.
type pluginAnswered struct {
	Arguments, IDs, CDI []string
	Resource            string
	Envs, Annotations   map[string]string
	Mounts, Devices     [][2]string // container path, host path
}

// encode returns the answer as a ContainerAllocateResponse
// (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto).
func (a pluginAnswered) encode() (b []byte) {
	add := func(field protowire.Number, texts ...string) {
		var m []byte
		for i, text := range texts {
			m = protowire.AppendString(protowire.AppendTag(m, protowire.Number(i+1), protowire.BytesType), text)
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), m)
	}
	for k, v := range a.Envs {
		add(1, k, v)
	}
	for _, m := range a.Mounts {
		add(2, m[0], m[1])
	}
	for _, d := range a.Devices {
		add(3, d[0], d[1], "rw")
	}
	for k, v := range a.Annotations {
		add(4, k, v)
	}
	for _, name := range a.CDI {
		add(5, name)
	}
	return b
}

// edit makes the changes that the kubelet and containerd make for the answer, except those of CDI files,
// which other tests have.
func (a pluginAnswered) edit(s *specs.Spec) {
	for k, v := range a.Envs {
		s.Process.Env = append(s.Process.Env, k+"="+v)
	}
	for _, m := range a.Mounts {
		mounting(m[1], m[0])(s)
	}
	for _, d := range a.Devices {
		for _, g := range simulated.GPUs {
			if d[0] == fmt.Sprintf("/dev/nvidia%d", g.Minor) {
				withNode(simulated.Majors.GPU, g.Minor)(s)
			}
		}
	}
	for k, v := range a.Annotations {
		annotated(k, v)(s)
	}
}

// What NVIDIA's device plugin 0.17.4 to 0.19.3 answers with each strategy is what the container gets, whatever its image
// asks for, and nothing for the pod beside it.
func TestWhatNVIDIAsDevicePluginAnswers(t *testing.T) {
	text, err := os.ReadFile("testdata/device-plugin.json")
	check(t, err)
	for line := range strings.Lines(string(text)) {
		var a pluginAnswered
		check(t, json.Unmarshal([]byte(line), &a))
		t.Run(strings.Join(a.Arguments, " "), func(t *testing.T) {
			entry := map[string]any{"PodUID": "u1", "ContainerName": "main", "ResourceName": a.Resource, "DeviceIDs": map[string][]string{"-1": a.IDs}, "AllocResp": a.encode()}
			data, err := json.Marshal(map[string]any{"Data": map[string]any{"PodDeviceEntries": []any{entry}, "RegisteredDevices": map[string][]string{}}, "Checksum": 1})
			check(t, err)
			useCheckpoint(t, string(data))
			noAPI := func(c *config.Config) { c.Policy.KubeletSocket = "/nonexistent" }
			table{env: devices("all"), rows: []row{
				{name: "the pod", spec: all(podNamed("u1", "main"), a.edit), config: noAPI, want: "GPU 0"},
				{name: "another pod", spec: podNamed("u2", "main"), config: noAPI, want: "starts without a GPU"},
			}}.run(t)
		})
	}
}
