package kubelet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// CheckpointFile is the kubelet's checkpoint. Its directory is DevicePluginPath of the device
// plugin API, a constant that no --root-dir changes. A variable for the tests.
var CheckpointFile = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"

// maxSize bounds the file, in bytes. An entry has some hundred, those of many nodes or mounts a few
// thousand.
const maxSize = 8 << 20

// content is the format since Kubernetes 1.20 (pkg/kubelet/cm/devicemanager/checkpoint).
type content struct {
	Data *struct {
		PodDeviceEntries  []entry
		RegisteredDevices json.RawMessage
	}
	Checksum *uint64
}

type entry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     map[int64][]string // by NUMA node
	AllocResp     json.RawMessage
}

// readPod returns the devices that the kubelet allocated to a pod, by container: those that the
// device plugin's response names by UUID, of any resource, otherwise the ids, of resources that can
// be GPUs. A container without such a device is not among them.
func readPod(file, uid string) (containers map[string][]string, err error) {
	if uid == "" { // guard: grant: no pod without a UID
		return nil, errors.New("the container's specification does not have its pod's UID")
	}
	data, _, err := trusted.Read(file, maxSize)
	if err != nil {
		return nil, err
	}
	entries, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s is no checkpoint of a known kubelet: %w", file, err)
	}
	containers = map[string][]string{}
	for _, e := range entries {
		if e.PodUID != uid { // guard: grant: pod's UID
			continue
		}
		if named := answered(e.AllocResp); named != nil {
			containers[e.ContainerName] = append(containers[e.ContainerName], named...)
			continue
		}
		if !policy.IsGPUResource(e.ResourceName) {
			continue
		}
		for _, ids := range e.DeviceIDs {
			containers[e.ContainerName] = append(containers[e.ContainerName], ids...)
		}
	}
	return containers, nil
}

func parse(data []byte) ([]entry, error) {
	var c content
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields() // guard: grant: checkpoint's form
	if err := d.Decode(&c); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data after its end")
	}
	if c.Data == nil || c.Checksum == nil || c.Data.RegisteredDevices == nil {
		return nil, errors.New("Data, Data.RegisteredDevices or Checksum is missing")
	}
	for _, e := range c.Data.PodDeviceEntries {
		if e.PodUID == "" || e.ContainerName == "" || e.ResourceName == "" || e.DeviceIDs == nil {
			return nil, errors.New("an entry has no PodUID, ContainerName, ResourceName or DeviceIDs")
		}
	}
	return c.Data.PodDeviceEntries, nil
}
