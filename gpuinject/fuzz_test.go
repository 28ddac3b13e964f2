package gpuinject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/kubelet"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// fuzzHost is a simulated host whose kubelet gave GPU 1 to the container podAnnotations.
func fuzzHost(f *testing.F) *testHost {
	h := simulatedHost(f)
	h.cfg.Policy.AcceptVolumeMounts = false // otherwise a pod's device lists are a grant
	was := kubelet.CheckpointFile
	f.Cleanup(func() { kubelet.CheckpointFile = was })
	kubelet.CheckpointFile = filepath.Join(f.TempDir(), "checkpoint")
	writeFile(f, kubelet.CheckpointFile, `{"Data":{"PodDeviceEntries":[{"PodUID":"uid","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["`+
		h.GPUs[1].UUID+`"]},"AllocResp":""}],"RegisteredDevices":{}},"Checksum":1}`, 0o600)
	return h
}

var podAnnotations = map[string]string{
	"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "main", "io.kubernetes.cri.sandbox-uid": "uid",
	"io.kubernetes.cri.sandbox-namespace": "team", "io.kubernetes.cri.sandbox-name": "pod",
}

// FuzzConfig runs Examine, Resolve and Apply on any bytes as config.json, of a container and of a
// container in a pod with GPU 1. No field is lost, and no device is given that was not granted.
func FuzzConfig(f *testing.F) {
	h := fuzzHost(f)
	everything := newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
	dir := newBundle(f, everything)
	for _, change := range []func(*specs.Spec){
		func(*specs.Spec) {}, inPod(2), privileged, annotated("cdi.k8s.io/x", "nvidia.com/gpu=3"),
		func(s *specs.Spec) { s.Process.Env = []string{"NVIDIA_VISIBLE_DEVICES=" + h.GPUs[3].UUID + ",1"} },
		func(s *specs.Spec) {
			s.Process.Env = []string{"CUDA_VERSION=8.0", "DOCKER_RESOURCE_GPU=2", "NVIDIA_IMEX_CHANNELS=0", "NVIDIA_GDS=enabled"}
		},
		func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Source: "/dev/null", Destination: request.DeviceListDir + "/0", Options: []string{"bind"}},
				specs.Mount{Source: "/data", Destination: "/usr/share/../lib", Type: "bind", Options: []string{"rbind"}})
		},
		func(s *specs.Spec) { // as CDI leaves it
			s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/usr/bin/nvidia-cdi-hook", Args: []string{"x"}}, {Path: "/opt/other"}}}
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: int64(h.Majors.GPU), Minor: int64(h.GPUs[0].Minor)}}
			s.Linux.MaskedPaths = nil
		},
	} {
		spec := *newSpec(everything.Process.Env...)
		change(&spec)
		raw, err := json.Marshal(spec)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	// A node under another name, as CDI leaves it.
	f.Add(fmt.Appendf(nil, `{"linux":{"namespaces":[{"type":"mount"}],"devices":[{"path":"/dev/nvidia0","type":"c","major":%d,"minor":%d}]},`+
		`"mounts":[{"destination":"/proc","type":"proc"}],"hooks":{"createContainer":[{"path":"/usr/bin/nvidia-cdi-hook"}]}}`, h.Majors.GPU, h.GPUs[0].Minor))
	f.Add([]byte(`{"process":{"env":["NVIDIA_VISIBLE_DEVICES=0"]},"mounts":[{"type":"proc","destination":"/proc"}],"linux":{"namespaces":[{"type":"mount"}],"x":1e999,"Devices":[]}}`))
	var inPod []string // what a pod with GPU 1 can have
	f.Fuzz(func(t *testing.T, raw []byte) {
		if inPod == nil {
			text, _ := asPod(t, dir, everything)
			inPod = h.inject(t, dir, text)
			for _, gpu := range h.GPUs {
				if slices.Contains(inPod, fmt.Sprintf("/dev/nvidia%d", gpu.Minor)) != (gpu.Index == 1) {
					t.Fatalf("a pod with GPU 1 gets %q", inPod)
				}
			}
		}
		asked := wordsOf(raw)
		for _, node := range h.inject(t, dir, raw) {
			for _, gpu := range h.GPUs {
				if node == fmt.Sprintf("/dev/nvidia%d", gpu.Minor) && !strings.Contains(asked, "all") && !strings.Contains(asked, strconv.Itoa(gpu.Index)) && !strings.Contains(asked, "GPU-") {
					t.Fatalf("%s is given and was not asked for: %s", node, raw)
				}
			}
		}
		var spec map[string]any
		if json.Unmarshal(raw, &spec) != nil {
			return
		}
		text, ok := asPod(t, dir, spec)
		if !ok {
			return
		}
		for _, node := range h.inject(t, dir, text) {
			if !slices.Contains(inPod, node) {
				t.Fatalf("%s was not allocated to the pod: %s", node, text)
			}
		}
	})
}

// wordsOf returns every part of a specification that can name GPUs.
func wordsOf(raw []byte) string {
	var spec specs.Spec
	_ = json.Unmarshal(raw, &spec)
	words := fmt.Sprint(spec.Annotations, destinations(spec.Mounts))
	if spec.Process != nil {
		words += fmt.Sprint(spec.Process.Env)
	}
	if strings.Contains(words, "CUDA_VERSION") {
		words += "all" // an image older than CUDA 9
	}
	return words
}

// asPod turns a specification into one of the container with GPU 1. It returns false if runc would
// read the result as a privileged container, as another container, or as one that already has
// nodes.
func asPod(t *testing.T, dir string, spec any) (text []byte, ok bool) {
	t.Helper()
	text, err := json.Marshal(spec)
	var fields map[string]any
	if err = errors.Join(err, json.Unmarshal(text, &fields)); err != nil || fields == nil {
		return nil, false
	}
	annotations, _ := fields["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
		fields["annotations"] = annotations
	}
	for key, value := range podAnnotations {
		annotations[key] = value
	}
	if text, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	b, err := bundle.Parse(dir, text, 0o600)
	if err != nil {
		return nil, false
	}
	who := request.Read(&b.Spec).Container
	for key, value := range podAnnotations {
		ok = b.Spec.Annotations[key] == value
		if !ok {
			return nil, false
		}
	}
	return text, !who.Privileged && len(b.Spec.Linux.Devices) == 0
}

// inject runs all steps for a container except attaching the mask. It returns the paths of the
// nodes that were added to its configuration, except further names of nodes that it already had.
func (h *testHost) inject(t *testing.T, dir string, raw []byte) (added []string) {
	t.Helper()
	name := filepath.Join(dir, bundle.ConfigName)
	check(t, os.WriteFile(name, raw, 0o600))
	edited, err := h.injectFile(dir)
	if err != nil {
		if strings.ContainsAny(err.Error(), "\n\r\x1b\x00") {
			t.Fatalf("control characters in %q", err)
		}
		return nil
	}
	if !edited {
		if now := readFile(t, dir, bundle.ConfigName); !bytes.Equal(now, raw) {
			t.Fatalf("a container without a GPU was changed: %s\nwas %s", now, raw)
		}
		return nil
	}
	now := readFile(t, dir, bundle.ConfigName)
	before, after := decode(t, raw), decode(t, now)
	if lost := lost("", before, after); len(lost) > 0 {
		t.Fatalf("lost or changed:\n%s\nin %s", strings.Join(lost, "\n"), raw)
	}
	var was, is specs.Spec
	if err := errors.Join(json.Unmarshal(raw, &was), json.Unmarshal(now, &is)); err != nil {
		return nil // runc will report it
	}
	if is.Linux == nil || is.Linux.Resources == nil {
		return nil // nothing was added
	}
	if was.Linux == nil {
		was.Linux = &specs.Linux{}
	}
	for _, d := range is.Linux.Devices[len(was.Linux.Devices):] {
		given := func(x specs.LinuxDevice) bool { return x.Type == d.Type && x.Major == d.Major && x.Minor == d.Minor }
		if !slices.ContainsFunc(was.Linux.Devices, given) {
			added = append(added, d.Path)
		}
	}
	var rules []specs.LinuxDeviceCgroup
	if was.Linux.Resources != nil {
		rules = was.Linux.Resources.Devices
	}
	for _, r := range is.Linux.Resources.Devices {
		own := slices.ContainsFunc(rules, func(x specs.LinuxDeviceCgroup) bool { return reflect.DeepEqual(x, r) })
		if !own && (!r.Allow || r.Type != "c" || r.Major == nil || r.Minor == nil || r.Access != "rw") {
			t.Fatalf("the rule %+v was added to %s", r, raw)
		}
	}
	return added
}

// injectFile does what the shim does with the bundle in dir, except that the root file system is
// always the bundle's own. It reports whether the container got GPUs or lost NVIDIA's hooks.
func (h *testHost) injectFile(dir string) (edited bool, err error) {
	c, err := Examine(dir, loading(h.cfg))
	if err != nil || c.Plain {
		return false, err
	}
	root, err := image.Open(filepath.Join(dir, "rootfs"))
	if err != nil {
		return false, err
	}
	defer root.Close()
	plan, err := Resolve(c, root, h.ask)
	if err != nil {
		return false, err
	}
	plan, mask, err := Apply(c, plan, root)
	if mask != nil {
		mask.Close()
	}
	return plan.GPU || len(plan.RemovedHooks) > 0, err
}

func decode(t *testing.T, text []byte) (v any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	check(t, dec.Decode(&v))
	return v
}

// editable lists the arrays that Apply changes, each with texts of the elements that it may remove.
var editable = map[string]string{
	".mounts": `"nosuid"|` + request.DeviceListDir, ".linux.devices": "", ".linux.resources.devices": "m", ".process.user.additionalGids": "",
	".hooks.prestart": "nvidia", ".hooks.createRuntime": "nvidia", ".hooks.createContainer": "nvidia",
	".hooks.startContainer": "nvidia", ".hooks.poststart": "nvidia", ".hooks.poststop": "nvidia",
}

// lost lists what differs between before and after, except the edits that Apply may make.
func lost(path string, before, after any) (list []string) {
	if words, ok := editable[path]; ok {
		was, _ := before.([]any)
		is, _ := after.([]any)
		for i, element := range was {
			text, _ := json.Marshal(element)
			removable := words != "" && slices.ContainsFunc(strings.Split(words, "|"), func(w string) bool { return bytes.Contains(text, []byte(w)) })
			switch {
			case len(is) > 0 && reflect.DeepEqual(is[0], element):
				is = is[1:]
			case !removable:
				list = append(list, fmt.Sprintf("%s[%d]: %s", path, i, text))
			}
		}
		return list
	}
	was, isObject := before.(map[string]any)
	is, stays := after.(map[string]any)
	if !isObject || !stays {
		if before != nil && !reflect.DeepEqual(before, after) {
			list = append(list, fmt.Sprintf("%s: %v is now %v", path, before, after))
		}
		return list
	}
	for key, value := range was {
		list = append(list, lost(path+"."+key, value, is[key])...)
	}
	for key := range is {
		if _, ok := was[key]; !ok && !slices.Contains([]string{".mounts", ".linux", ".process"}, path+"."+key) && !strings.HasPrefix(path+".", ".linux.") && !strings.HasPrefix(path+".", ".process.") {
			list = append(list, path+"."+key+" is new")
		}
	}
	return list
}

// FuzzAnswers uses any bytes as the probe's answer, for a pod that names GPU 0 or a MIG device.
func FuzzAnswers(f *testing.F) {
	h := newHost(f, sim.Options{GPUs: 3, MIG: []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}, {GPU: 1, GI: 5, CI: 1}}})
	was := kubelet.CheckpointFile
	f.Cleanup(func() { kubelet.CheckpointFile = was })
	kubelet.CheckpointFile = filepath.Join(f.TempDir(), "none")
	facts := factsOf(h.Driver)
	ids := []string{h.GPUs[0].UUID, h.MIG[0].UUID, h.MIG[1].UUID, h.GPUs[1].UUID}
	for i := range ids {
		allocation := `{"pod":{"found":true,"containers":{"main":["` + ids[i] + `"],"x":["` + ids[0] + `::1","all",""]}}}`
		var a question.Answers
		if err := json.Unmarshal([]byte(allocation), &a); err != nil {
			f.Fatal(err)
		}
		a.Facts = &facts
		text, err := json.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, i)
	}
	f.Add([]byte(`{"facts":{"driver":"x","gpus":[{"minor":-1,"index":99,"instances":[{"gi":5,"ci":1}]}]},"pod_error":"busy","no_kubelet":true}`), 0)
	f.Fuzz(func(t *testing.T, text []byte, i int) {
		var a question.Answers
		if json.Unmarshal(text, &a) != nil {
			return
		}
		_ = os.Remove(filepath.Join(h.cfg.Host.StateDir, "nvml.json"))
		id := ids[(i%len(ids)+len(ids))%len(ids)]
		spec := newSpec("NVIDIA_VISIBLE_DEVICES="+id, "NVIDIA_REQUIRE_ARCH=arch>=7.0")
		spec.Annotations = podAnnotations
		c, err := ExamineSpec(spec, loading(h.cfg))
		check(t, err)
		plan, err := resolveIn(t, c, t.TempDir(), func(question.Questions) question.Answers { return a })
		if err != nil && strings.ContainsAny(err.Error(), "\n\r\x1b\x00") {
			t.Fatalf("control characters in %q", err)
		}
		if err == nil && len(plan.Devices) > 0 && a.Pod == nil {
			t.Fatalf("the kubelet did not answer: %v", plan.Devices)
		}
		for _, gpu := range plan.GPUs {
			if err == nil && !slices.ContainsFunc(allIDs(a), func(id string) bool { return strings.HasPrefix(id, gpu.UUID) }) {
				t.Fatalf("GPU %d was not allocated", gpu.Index)
			}
		}
	})
}

// FuzzKept uses any bytes as the driver's files and NVML's answer kept in the state directory
// (T62). A container gets files of the driver root, or is refused.
func FuzzKept(f *testing.F) {
	h := newHost(f, sim.Options{GPUs: 3, MIG: []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}}})
	c, err := ExamineSpec(newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=1.0"), loading(h.cfg))
	check(f, err)
	_, err = resolveIn(f, c, f.TempDir(), h.ask)
	check(f, err)
	dir := h.cfg.Host.StateDir
	driver, facts := readFile(f, dir, filesName), readFile(f, dir, "nvml.json")
	f.Add(driver, facts)
	f.Add(driver[:len(driver)/2], bytes.ReplaceAll(facts, []byte("0"), []byte("9")))
	f.Add([]byte(`{"format":1,"libraries":[{}]}`), []byte(`{"Facts":{"gpus":[null,{"instances":[{}]}]}}`))
	f.Fuzz(func(t *testing.T, driver, facts []byte) {
		check(t, os.WriteFile(filepath.Join(dir, filesName), driver, 0o600))
		check(t, os.WriteFile(filepath.Join(dir, "nvml.json"), facts, 0o600))
		plan, err := resolveIn(t, c, t.TempDir(), h.ask)
		if err != nil && strings.ContainsAny(err.Error(), "\n\r\x1b\x00") {
			t.Fatalf("control characters in %q", err)
		}
		if err == nil && len(plan.Devices) == 0 {
			t.Fatalf("no device: %+v", plan)
		}
	})
}

func allIDs(a question.Answers) (ids []string) {
	for _, list := range a.Pod.Containers {
		ids = append(ids, list...)
	}
	return ids
}
