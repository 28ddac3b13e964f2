package gpuinject

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/kubelet"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// podAllocation holds the devices of one resource that were allocated to one container.
type podAllocation struct {
	uid, container, resource string
	ids                      []string
}

// answered is an id for which the plugin answered this UUID.
func answered(id, uuid string) []string { return []string{id + "=" + uuid} }

// writeCheckpoint makes the shim read this kubelet checkpoint for the rest of the test.
func writeCheckpoint(t *testing.T, list ...podAllocation) {
	t.Helper()
	type entry struct {
		PodUID, ContainerName, ResourceName string
		DeviceIDs                           map[int64][]string
		AllocResp                           []byte
	}
	entries := []entry{}
	for _, a := range list {
		ids, uuid := a.ids, ""
		if len(ids) == 1 && strings.Contains(ids[0], "=") {
			id, u, _ := strings.Cut(ids[0], "=")
			ids, uuid = []string{id}, u
		}
		entries = append(entries, entry{a.uid, a.container, a.resource, map[int64][]string{-1: ids}, pluginAnswer(uuid)})
	}
	data, err := json.Marshal(map[string]any{
		"Data": map[string]any{"PodDeviceEntries": entries, "RegisteredDevices": map[string][]string{}}, "Checksum": 1,
	})
	check(t, err)
	useCheckpoint(t, string(data))
}

// pluginAnswer encodes a ContainerAllocateResponse with this NVIDIA_VISIBLE_DEVICES.
func pluginAnswer(visible string) []byte {
	if visible == "" {
		return nil
	}
	var env []byte
	for i, text := range []string{"NVIDIA_VISIBLE_DEVICES", visible} {
		env = protowire.AppendString(protowire.AppendTag(env, protowire.Number(i+1), protowire.BytesType), text)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), env)
}

// useCheckpoint is like writeCheckpoint, with any content; "" means no file.
func useCheckpoint(t *testing.T, content string) {
	t.Helper()
	was := kubelet.CheckpointFile
	t.Cleanup(func() { kubelet.CheckpointFile = was })
	kubelet.CheckpointFile = filepath.Join(t.TempDir(), "kubelet_internal_checkpoint")
	if content != "" {
		writeFile(t, kubelet.CheckpointFile, content, 0o600)
	}
}

// podNamed puts the container into a pod, without a device in its specification.
func podNamed(uid, container string) func(*specs.Spec) {
	return all(inPod(), annotated("io.kubernetes.cri.sandbox-name", "train"), annotated("io.kubernetes.cri.sandbox-uid", uid),
		annotated("io.kubernetes.cri.container-name", container))
}

// showGrant shows the GPUs, and whether ids were passed over.
func showGrant(p Plan) string {
	s := showGPUs(p)
	for _, note := range p.Notes {
		if strings.Contains(note, "passed over") {
			s += "; " + note
		}
	}
	return s
}

const gpuResource = "nvidia.com/gpu"

func uuidOf(gpus ...int) (list []string) {
	for _, i := range gpus {
		list = append(list, simulated.GPUs[i].UUID)
	}
	return list
}

// The checkpoint's entries for the pod's UID are the allocation, and nothing is asked.
func TestTheCheckpointGrants(t *testing.T) {
	const none = "starts without a GPU"
	writeCheckpoint(t,
		podAllocation{"u1", "main", gpuResource, uuidOf(1)},
		podAllocation{"u1", "two", gpuResource, uuidOf(2, 3)},
		podAllocation{"u1", "prepare", "nvidia.com/gpu.shared", []string{uuidOf(2)[0] + "::0", uuidOf(3)[0] + "::7"}},
		podAllocation{"u2", "main", "nvidia.com/nic", []string{"2", "all", "0:1"}},
		podAllocation{"u3", "main", gpuResource, uuidOf(0)},
		podAllocation{"u3", "main", "nvidia.com/hostdev", []string{"0000:65:00.0", "GPU-0"}},
		podAllocation{"u4", "main", "example.com/gpu", uuidOf(0)},
		podAllocation{"u5", "main", gpuResource, []string{"GPU-00000000-0000-0000-0000-000000000000"}},
		podAllocation{"u7", "main", gpuResource, answered(uuidOf(0)[0]+"-3", uuidOf(2)[0])},
		podAllocation{"u8", "main", gpuResource, []string{uuidOf(0)[0] + "-3"}},
		podAllocation{"u9", "main", "volcano.sh/vgpu-number", answered(uuidOf(3)[0]+"-1", uuidOf(3)[0])},
		podAllocation{"u6", "main", gpuResource, []string{uuidOf(0)[0] + "::all", strings.TrimPrefix(uuidOf(0)[0], "GPU-"), "GPU-" + uuidOf(0)[0][4:12]}},
	)
	h := simulatedHost(t)
	rows := []row{
		{name: "a container", env: devices("all"), spec: podNamed("u1", "main"), want: "GPU 1"},
		{name: "another container of the pod", env: devices("all"), spec: podNamed("u1", "two"), want: "GPUs 2, 3"},
		{name: "an init container, with replicas", env: devices("all"), spec: podNamed("u1", "prepare"), want: "GPUs 2, 3"},
		{name: "another container's GPU", env: devices(uuidOf(2)[0]), spec: podNamed("u1", "main"), want: "refused: is not this container's: allocated by the kubelet: " + uuidOf(1)[0]},
		{name: "a pod that has nothing", env: devices("all"), spec: podNamed("u10", "main"), want: none},
		{name: "a pod whose UID begins alike", env: devices("all"), spec: podNamed("u", "main"), want: none},
		{name: "a network card with a GPU's words", env: devices("all"), spec: podNamed("u2", "main"), want: none},
		{name: "a network card, a GPU by index", env: devices("2"), spec: podNamed("u2", "main"), want: `refused: is not this container's: the kubelet allocated "0:1"`},
		{name: "a GPU and a network card", env: devices("all"), spec: podNamed("u3", "main"), want: `GPU 0; 2 device ids that the kubelet allocated name no GPU and were passed over, such as "0000:65:00.0"`},
		{name: "another domain", env: devices("all"), spec: podNamed("u4", "main"), want: none},
		{name: "a GPU that is gone", env: devices("all"), spec: podNamed("u5", "main"), want: `refused: the kubelet allocated what this host does not have: device "GPU-00000000-0000-0000-0000-000000000000"`},
		{name: "HAMi: what its plugin answered", env: devices("all"), spec: podNamed("u7", "main"), want: "GPU 2"},
		{name: "HAMi: another GPU by the id", env: devices(uuidOf(0)[0]), spec: podNamed("u7", "main"), want: "refused: is not this container's"},
		{name: "HAMi: an answer without UUIDs", env: devices("0"), spec: podNamed("u8", "main"), want: "refused: the kubelet allocated \"" + uuidOf(0)[0] + "-3\" ... names no GPU by UUID"},
		{name: "Volcano's resource", env: devices("all"), spec: podNamed("u9", "main"), want: "GPU 3"},
		{name: "ids that are nearly a GPU's", env: devices("all"), spec: podNamed("u6", "main"), want: none},
	}
	for i := range rows {
		rows[i].config = func(c *config.Config) { c.Policy.KubeletSocket = "/nonexistent" }
	}
	table{host: h, show: showGrant, rows: rows}.run(t)
}

// askKubelet resolves a container of pod default/train whose environment asks for value. reply is
// the kubelet's answer. It returns the outcome, and whether the kubelet was asked.
func askKubelet(t *testing.T, spec func(*specs.Spec), value string, reply question.Answers) (outcome string, asked bool) {
	t.Helper()
	s := newSpec(devices(value)...)
	spec(s)
	plan, err := resolve(t, hostConfig(t), s, func(q question.Questions) question.Answers {
		asked = q.Pod != nil && q.Pod.Namespace == "default" && q.Pod.Name == "train"
		return reply
	})
	switch {
	case err != nil && strings.ContainsAny(err.Error(), "\n"):
		t.Errorf("%q is more than one line", err)
	case err != nil:
		return "refused: " + err.Error(), asked
	case !plan.GPU:
		return "starts without a GPU: " + plan.Grant, asked
	}
	return showGPUs(plan), asked
}

func found(containers map[string][]string) question.Answers {
	return question.Answers{Pod: &policy.Allocation{Found: true, Containers: containers}}
}

// The kubelet's API is asked if there is no checkpoint. Its answer contains no UID.
func TestTheKubeletsAPIGrantsByName(t *testing.T) {
	mine, named := found(map[string][]string{"main": uuidOf(1, 2), "side": {}}), strings.Join(uuidOf(1, 2), ",")
	const unknown = "refused: what was allocated to pod default/train is not known: "
	for _, tc := range []struct {
		name, checkpoint, container, value string
		reply                              question.Answers
		want                               string
	}{
		{"its GPUs by UUID", "", "main", named, mine, "GPUs 1, 2"},
		{"one of its GPUs by UUID", "", "main", uuidOf(2)[0], mine, "GPU 2"},
		{"all, which may be those of the next pod of this name", "", "main", "all", mine, unknown + "the kubelet's API has a pod of this name, but no UID ... PASS_DEVICE_SPECS=true ... no such file"},
		{"an index, which is easy to guess", "", "main", "1", mine, unknown},
		{"the beginning of a UUID", "", "main", uuidOf(1)[0][:12], mine, unknown},
		{"a UUID and an index", "", "main", uuidOf(1)[0] + ",2", mine, unknown},
		{"another GPU", "", "main", uuidOf(0)[0], mine, "refused: is not this container's"},
		{"all, and the pod has nothing", "", "side", "all", mine, "starts without a GPU: no GPU was allocated to the container"},
		{"a pod that is not there", "", "main", "all", question.Answers{Pod: &policy.Allocation{}}, "starts without a GPU: no GPU was allocated: the kubelet does not know pod default/train"},
		{"a damaged checkpoint", "{", "main", "all", mine, unknown + "... is no checkpoint of a known kubelet"},
		{"a damaged checkpoint, and a UUID", "{", "main", named, mine, "GPUs 1, 2"},
		{"a kubelet that does not answer", "", "main", named, question.Answers{PodError: "busy"}, unknown + "the kubelet at /var/lib/kubelet/pod-resources/kubelet.sock: busy"},
		{"no kubelet", "", "main", named, question.Answers{NoKubelet: true}, unknown + "there is no kubelet at ... policy.kubelet-socket ... policy.accept-env-without-kubelet"},
		{"no socket, and a damaged checkpoint", "{", "main", named, question.Answers{NoKubelet: true}, unknown + "there is no kubelet at ... is no checkpoint of a known kubelet"},
	} {
		useCheckpoint(t, tc.checkpoint)
		if got, asked := askKubelet(t, podNamed("u1", tc.container), tc.value, tc.reply); !asked || !strings.HasPrefix(got, tc.want) && !matches(got, tc.want) {
			t.Errorf("%s: %s (asked: %v), want %s", tc.name, got, asked, tc.want)
		}
	}
}

// The checkpoint does not list a container without a device. The API shows whether it is one of the
// pod's own containers or one that shares the pod's devices; the devices are still those of the
// UID.
func TestAContainerThatIsNotInTheCheckpoint(t *testing.T) {
	writeCheckpoint(t, podAllocation{"u1", "main", gpuResource, uuidOf(1)}, podAllocation{"u2", "main", gpuResource, uuidOf(3)})
	reply := found(map[string][]string{"main": uuidOf(3), "side": uuidOf(3)})
	for _, tc := range []struct {
		name, uid, container string
		reply                question.Answers
		want                 string
		asked                bool
	}{
		{"a container of the pod", "u1", "side", reply, "starts without a GPU: no GPU was allocated to the container", true},
		{"an ephemeral one", "u1", "debug", reply, "GPU 1", true},
		{"a pod that the API does not have", "u1", "debug", question.Answers{Pod: &policy.Allocation{}}, "starts without a GPU: no GPU was allocated: the kubelet does not know", true},
		{"no API", "u1", "debug", question.Answers{NoKubelet: true}, "refused: what was allocated to pod default/train is not known: there is no kubelet at", true},
		{"a pod that has nothing", "u3", "main", reply, "starts without a GPU: no GPU was allocated to the container", false},
	} {
		got, asked := askKubelet(t, podNamed(tc.uid, tc.container), "all", tc.reply)
		if asked != tc.asked || !strings.HasPrefix(got, tc.want) && !matches(got, tc.want) {
			t.Errorf("%s: %s (asked: %v), want %s", tc.name, got, asked, tc.want)
		}
	}
}

// In a cgroup of the kubelet the environment is not a grant, whichever runtime created the
// container.
func TestAPodOfAnotherRuntime(t *testing.T) {
	in := func(cgroup string) func(*specs.Spec) {
		return func(s *specs.Spec) { s.Linux.CgroupsPath = cgroup }
	}
	own := func(s *specs.Spec) { withNode(simulated.Majors.GPU, simulated.GPUs[1].Minor)(s) }
	const none = "starts without a GPU"
	table{env: devices("all"), rows: []row{
		{name: "cgroupfs", spec: in("/kubepods/burstable/pod3c/7f"), want: none},
		{name: "systemd", spec: in("kubepods-besteffort-pod3c.slice:docker:7f"), want: none},
		{name: "a guaranteed pod", spec: in("kubepods-pod3c.slice:docker:7f"), want: none},
		{name: "below another cgroup", spec: in("/node/kubepods/pod3c/7f"), want: none},
		{name: "below another slice", spec: in("node-kubepods-besteffort-pod3c.slice:docker:7f"), want: none},
		{name: "with its node", spec: all(own, in("/kubepods/pod3c/7f")), want: "GPU 1"},
		{name: "Docker's own", spec: in("system.slice:docker:kubepods-7f"), want: "every GPU"},
		{name: "a name that looks alike", spec: in("/mykubepods/7f"), want: "every GPU"},
	}}.run(t)
}

// A pod's events must not list the GPUs of the node.
func TestAnUnknownDeviceListsNoGPUs(t *testing.T) {
	spec := all(inPod(), listing("GPU-00000000-1111-2222-3333-444444444444"))
	s := newSpec(devices("/var/run/nvidia-container-devices")...)
	spec(s)
	h := simulatedHost(t)
	_, err := h.resolve(t, s)
	refused(t, err, verdict.KindDenied, `GPU "GPU-00000000-1111-2222-3333-444444444444" is not this container's`)
	for _, gpu := range simulated.GPUs {
		if strings.Contains(err.Error(), gpu.UUID) {
			t.Errorf("%v names GPU %d", err, gpu.Index)
		}
	}
}

// A MIG device is recognized by its UUID and by the older form of its name.
func TestMIGInTheCheckpoint(t *testing.T) {
	h := newMIGHost(t)
	older := fmt.Sprintf("MIG-%s/%d/%d", h.GPUs[1].UUID, h.MIG[0].GI, h.MIG[0].CI)
	writeCheckpoint(t, podAllocation{"u1", "main", "nvidia.com/mig-1g.18gb", []string{h.MIG[1].UUID}},
		podAllocation{"u2", "main", "nvidia.com/mig-1g.18gb", []string{older + "::2"}}, podAllocation{"u3", "main", "nvidia.com/nic", []string{"1:0", "MIG-", "MIG-1"}})
	name := func(m sim.MIG) string { return fmt.Sprintf("%d/%d of GPU 1", m.GI, m.CI) }
	table{host: h, show: showMIG, env: devices("all"), rows: []row{
		{name: "by UUID", spec: podNamed("u1", "main"), want: name(h.MIG[1])},
		{name: "by its instances, a replica", spec: podNamed("u2", "main"), want: name(h.MIG[0])},
		{name: "by index", spec: podNamed("u3", "main"), want: "starts without a GPU"},
	}}.run(t)
}
