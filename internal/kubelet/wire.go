package kubelet

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of the PodResources API v1 (api.proto). They never change.
const (
	getRequestName      = 1
	getRequestNamespace = 2
	responsePods        = 1 // of both answers
	podName             = 1
	podNamespace        = 2
	podContainers       = 3
	containerName       = 1
	containerDevices    = 2
	devicesResource     = 1
	devicesIDs          = 2
)

func getRequest(namespace, name string) []byte {
	b := protowire.AppendTag(nil, getRequestName, protowire.BytesType)
	b = protowire.AppendString(b, name)
	b = protowire.AppendTag(b, getRequestNamespace, protowire.BytesType)
	return protowire.AppendString(b, namespace)
}

// each calls fn with every length-delimited field of a message; other kinds of
// fields are passed over.
func each(message []byte, fn func(field protowire.Number, value []byte) error) error {
	for len(message) > 0 {
		num, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errMalformed
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, kind, message); n < 0 {
				return errMalformed
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return errMalformed
		}
		message = message[n:]
		if err := fn(num, value); err != nil {
			return err
		}
	}
	return nil
}

// parse finds the pod in a ListPodResourcesResponse; a GetPodResourcesResponse has
// the same form with one pod.
func parse(answer []byte, namespace, name string) (Pod, error) {
	var found Pod
	err := each(answer, func(field protowire.Number, value []byte) error {
		if field != responsePods || found.Found {
			return nil
		}
		pod, podNS, podN, err := parsePod(value)
		if err == nil && podNS == namespace && podN == name {
			found = pod
		}
		return err
	})
	return found, err
}

// count tells how many pods a ListPodResourcesResponse has; all of them must be well
// formed.
func count(answer []byte) (pods int, err error) {
	err = each(answer, func(field protowire.Number, value []byte) error {
		if field != responsePods {
			return nil
		}
		pods++
		_, _, _, err := parsePod(value)
		return err
	})
	return pods, err
}

func parsePod(message []byte) (pod Pod, namespace, name string, err error) {
	pod = Pod{Found: true, Containers: map[string][]string{}}
	err = each(message, func(field protowire.Number, value []byte) error {
		switch field {
		case podName:
			name = string(value)
		case podNamespace:
			namespace = string(value)
		case podContainers:
			container, ids, err := parseContainer(value)
			if err != nil {
				return err
			}
			pod.Containers[container] = ids
		}
		return nil
	})
	return pod, namespace, name, err
}

func parseContainer(message []byte) (name string, ids []string, err error) {
	ids = []string{}
	err = each(message, func(field protowire.Number, value []byte) error {
		switch field {
		case containerName:
			name = string(value)
		case containerDevices:
			var resource string
			var these []string
			if err := each(value, func(field protowire.Number, value []byte) error {
				switch field {
				case devicesResource:
					resource = string(value)
				case devicesIDs:
					these = append(these, string(value))
				}
				return nil
			}); err != nil {
				return err
			}
			if strings.HasPrefix(resource, ResourceDomain) {
				ids = append(ids, these...)
			}
		}
		return nil
	})
	return name, ids, err
}
