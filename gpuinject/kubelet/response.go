package kubelet

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// Fields of the device plugin API's messages
// (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto).
const (
	responseEnvs        = 1 // map<string, string>
	responseMounts      = 2 // repeated Mount
	responseAnnotations = 4 // map<string, string>
	responseCDI         = 5 // repeated CDIDevice

	firstString  = 1 // key of a map's entry, container_path of Mount, name of CDIDevice
	secondString = 2 // value of a map's entry
)

// maxAnswered bounds how many devices a response may name.
const maxAnswered = 1024

// answered returns the GPUs and MIG devices that a device plugin's response names by UUID: in
// NVIDIA_VISIBLE_DEVICES, as CDI devices, in CDI annotations or as device-list mounts. It returns
// nil if the response names none or names one in another way, such as by index: then the ids of the
// allocation count. Plugins that share GPUs (HAMi, Volcano) have ids of their own for the kubelet
// and give another GPU than the id may name.
func answered(raw json.RawMessage) []string {
	var message []byte
	if json.Unmarshal(raw, &message) != nil {
		return nil
	}
	var names []string
	ok := fields(message, func(number protowire.Number, value []byte) bool {
		first, second := entryOf(value)
		switch number {
		case responseEnvs:
			if first == request.EnvVisibleDevices {
				for name := range strings.SplitSeq(second, ",") {
					if name = strings.TrimSpace(name); strings.Contains(name, "=") {
						names = appendCDI(names, name)
					} else {
						names = append(names, name)
					}
				}
			}
		case responseAnnotations:
			if strings.HasPrefix(first, "cdi.k8s.io/") || strings.HasPrefix(first, "nvidia.cdi.k8s.io/") {
				for name := range strings.SplitSeq(second, ",") {
					names = appendCDI(names, name)
				}
			}
		case responseCDI:
			names = appendCDI(names, first)
		case responseMounts:
			if dir, id := path.Split(path.Clean(first)); dir == request.DeviceListDir+"/" {
				names = append(names, id)
			}
		}
		return len(names) <= maxAnswered
	})
	names = slices.DeleteFunc(names, func(n string) bool { return n == "" || n == "void" })
	isUUID := func(n string) bool { return strings.HasPrefix(n, "GPU-") || strings.HasPrefix(n, "MIG-") }
	if !ok || len(names) == 0 || slices.ContainsFunc(names, func(n string) bool { return !isUUID(n) }) {
		return nil
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// appendCDI adds the device of a CDI name, if it is one of NVIDIA's GPUs: "nvidia.com/gpu=GPU-…".
func appendCDI(names []string, name string) []string {
	kind, device, _ := strings.Cut(strings.TrimSpace(name), "=")
	vendor, class, _ := strings.Cut(kind, "/")
	if (vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com")) && request.IsGPUClass(class) {
		return append(names, device)
	}
	return names
}

// entryOf returns the first two string fields of a message: the key and value of a map's entry, the
// container path of a mount, or the name of a CDI device.
func entryOf(message []byte) (first, second string) {
	fields(message, func(number protowire.Number, value []byte) bool {
		switch number {
		case firstString:
			first = string(value)
		case secondString:
			second = string(value)
		}
		return true
	})
	return first, second
}

// fields calls fn for each field of a message that has a length, until it returns false. ok is
// false then, or if the message is malformed.
func fields(message []byte, fn func(protowire.Number, []byte) bool) (ok bool) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return false
		}
		if kind == protowire.BytesType {
			if value, _ := protowire.ConsumeBytes(message); !fn(number, value) {
				return false
			}
		}
		message = message[n:]
	}
	return true
}
