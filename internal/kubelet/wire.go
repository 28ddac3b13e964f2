package kubelet

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of the PodResources API v1 (api.proto). They never change.
const (
	responsePods     = 1
	podName          = 1
	podNamespace     = 2
	podContainers    = 3
	containerName    = 1
	containerDevices = 2
	devicesResource  = 1
	devicesIDs       = 2
)

// pod is a pod of a response, with the device ids of its containers.
type pod struct {
	namespace, name string
	containers      map[string][]string
}

// decodePods decodes a ListPodResourcesResponse.
func decodePods(response []byte) ([]pod, error) {
	var d decoder
	var pods []pod
	for _, message := range d.values(response, responsePods) {
		p := pod{namespace: d.text(message, podNamespace), name: d.text(message, podName), containers: map[string][]string{}}
		for _, container := range d.values(message, podContainers) {
			ids := []string{}
			for _, devices := range d.values(container, containerDevices) {
				if !strings.HasPrefix(d.text(devices, devicesResource), resourceDomain) {
					continue
				}
				for _, id := range d.values(devices, devicesIDs) {
					ids = append(ids, string(id))
				}
			}
			p.containers[d.text(container, containerName)] = ids
		}
		pods = append(pods, p)
	}
	return pods, d.err
}

// decoder reads fields of messages and keeps the first error.
type decoder struct{ err error }

// values returns the values of a length-delimited field, in order.
func (d *decoder) values(message []byte, number protowire.Number) [][]byte {
	var list [][]byte
	for len(message) > 0 && d.err == nil {
		num, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			d.err = errMalformed
			break
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(num, kind, message); n < 0 {
			d.err = errMalformed
			break
		}
		if num == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			list = append(list, value)
		}
		message = message[n:]
	}
	return list
}

// text returns the value of a string field, which is empty if the message lacks it.
func (d *decoder) text(message []byte, number protowire.Number) string {
	if list := d.values(message, number); len(list) > 0 {
		return string(list[len(list)-1])
	}
	return ""
}
