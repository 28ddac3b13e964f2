package kubelet

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// written is what kubelet 1.36 wrote, with shorter responses of the device plugin.
const written = `{"Data":{"PodDeviceEntries":[` +
	`{"PodUID":"0b3e","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["GPU-b","GPU-a"],"1":["GPU-c::3"]},"AllocResp":"ChUKE05WSURJQQ=="},` +
	`{"PodUID":"0b3e","ContainerName":"prepare","ResourceName":"nvidia.com/gpu.shared","DeviceIDs":{"-1":["GPU-d"]},"AllocResp":null},` +
	`{"PodUID":"0b3e","ContainerName":"net","ResourceName":"example.com/nic","DeviceIDs":{"-1":["all"]},"AllocResp":""},` +
	`{"PodUID":"0b3","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["GPU-x"]},"AllocResp":""}],` +
	`"RegisteredDevices":{"nvidia.com/gpu":["GPU-a","GPU-b"]}},"Checksum":2842164331}`

func write(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubelet_internal_checkpoint")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestPod(t *testing.T) {
	file := write(t, written)
	got, err := readPod(file, "0b3e")
	if err != nil || len(got["main"]) != 3 || !reflect.DeepEqual(got["prepare"], []string{"GPU-d"}) || len(got) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	for name, content := range map[string]string{
		"another pod": written, "a kubelet that has allocated nothing": `{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}` + "\n",
	} {
		if got, err := readPod(write(t, content), "b3e"); err != nil || len(got) != 0 {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

func TestAFileOfAnotherFormIsAnError(t *testing.T) {
	replace := func(old, with string) string { return strings.Replace(written, old, with, 1) }
	for name, content := range map[string]string{
		"empty":                        "",
		"null":                         "null",
		"an object":                    "{}",
		"before Kubernetes 1.20":       replace(`{"-1":["GPU-d"]}`, `["GPU-d"]`),
		"a field of the entry":         replace(`"AllocResp"`, `"Claims":[],"AllocResp"`),
		"a field of the file":          replace(`"Checksum"`, `"Version":"v3","Checksum"`),
		"no checksum":                  replace(`,"Checksum":2842164331`, ""),
		"no registered devices":        replace(`,"RegisteredDevices":{"nvidia.com/gpu":["GPU-a","GPU-b"]}`, ""),
		"an entry without a pod":       replace(`"PodUID":"0b3"`, `"PodUID":""`),
		"an entry without a container": replace(`"ContainerName":"net"`, `"ContainerName":""`),
		"an entry without a resource":  replace(`"ResourceName":"example.com/nic",`, ""),
		"an entry without devices":     replace(`"DeviceIDs":{"-1":["GPU-x"]},`, ""),
		"two files":                    written + written,
		"too large":                    written + strings.Repeat(" ", maxSize),
	} {
		file := write(t, content)
		if got, err := readPod(file, "0b3e"); err == nil || got != nil || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
	for n := range len(written) {
		if got, err := parse([]byte(written[:n])); err == nil {
			t.Fatalf("cut after %d bytes: got %v", n, got)
		}
	}
}

func TestOnlyAFileOfRootsCounts(t *testing.T) {
	for _, tc := range []struct {
		name, says string
		change     func(file string) error
	}{
		{"writable by its group", "chmod go-w it", func(file string) error { return os.Chmod(file, 0o660) }},
		{"a link", "too many levels", func(file string) error {
			return errors.Join(os.Rename(file, file+".real"), os.Symlink(file+".real", file))
		}},
		{"missing", "no such file", os.Remove},
		{"another user's", "is owned by uid 1000", func(file string) error { return os.Chown(file, 1000, 1000) }},
	} {
		file := write(t, written)
		if err := tc.change(file); errors.Is(err, os.ErrPermission) {
			t.Fatal("it gives a file to another user: run this test as root")
		} else if err != nil {
			t.Fatal(err)
		}
		if got, err := readPod(file, "0b3e"); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: got %v, %v", tc.name, got, err)
		}
	}
	if got, err := readPod(write(t, written), ""); err == nil || !strings.Contains(err.Error(), "UID") {
		t.Errorf("without a UID: got %v, %v", got, err)
	}
}

// FuzzPod holds that a pod gets only ids of entries of its own: of resources that can be GPUs, or
// UUIDs that a plugin answered.
func FuzzPod(f *testing.F) {
	f.Add([]byte(written))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"0b3e","PodUID":"x","ContainerName":"c","ResourceName":"nvidia.com/gpu","DeviceIDs":{"9":[]}}],"RegisteredDevices":{}},"Checksum":1}`))
	f.Add([]byte(`{"data":{"poddeviceentries":[null],"RegisteredDevices":null},"Checksum":-1}`))
	file := filepath.Join(f.TempDir(), "checkpoint")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		pod, err := readPod(file, "0b3e")
		if err != nil {
			if pod != nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, %q", pod, err)
			}
			return
		}
		for container, ids := range pod {
			resource := bytes.Contains(data, []byte("nvidia.com")) || bytes.Contains(data, []byte(`\`))
			isUUID := func(id string) bool { return strings.HasPrefix(id, "GPU-") || strings.HasPrefix(id, "MIG-") }
			if container == "" || !resource && slices.ContainsFunc(ids, func(id string) bool { return !isUUID(id) }) {
				t.Errorf("container %q has %q", container, ids)
			}
		}
	})
}
