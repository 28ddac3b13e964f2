package memlimit

import (
	"fmt"
	"slices"
	"strings"
)

// Variables of NVIDIA's, in MiB. HAMi's belong to its own library; see AddHAMi.
const (
	EnvRequest = "NVIDIA_GPU_MEMORY_REQUEST"
	EnvLimit   = "NVIDIA_GPU_MEMORY_LIMIT"
)

// Annotations of a container, and of an update of it by the Task API.
const (
	AnnotationRequest = "io.containerd.nvidia.gpu-memory-request"
	AnnotationLimit   = "io.containerd.nvidia.gpu-memory-limit"
)

// podPrefix begins the annotations of a pod that kai-gpu-fractioning reads:
// <prefix><container>.gpu-memory.limit. Their values are quantities, a plain number counts bytes.
const podPrefix = "nvidia.com/container."

// Wish is what one source asks for. Both lists are empty if it asks for nothing.
type Wish struct {
	Request, Limit Amounts
	// RequestFrom and LimitFrom name where the lists come from.
	RequestFrom, LimitFrom string
}

// Empty reports whether nothing is asked for.
func (w Wish) Empty() bool { return len(w.Request)+len(w.Limit) == 0 }

// names returns where the wish comes from, its limit first.
func (w Wish) names() (list []string) {
	if len(w.Limit) > 0 {
		list = append(list, w.LimitFrom)
	}
	if len(w.Request) > 0 && !slices.Contains(list, w.RequestFrom) {
		list = append(list, w.RequestFrom)
	}
	return list
}

// Asked is what a container's specification asks for.
type Asked struct {
	Environment, Annotations Wish
	// Err is why a value cannot be parsed.
	Err error
}

// Names returns the variables and annotations that ask, also those that cannot be parsed.
func (a Asked) Names() []string { return append(a.Annotations.names(), a.Environment.names()...) }

// Read reads the variables and annotations of a container. container is its name in its pod.
func Read(env, annotations map[string]string, container string) (a Asked) {
	a.Environment.read(env, EnvRequest, EnvLimit, MiB, &a.Err)
	if container != "" && !strings.ContainsAny(container, "/") {
		key := podPrefix + container + ".gpu-memory."
		a.Annotations.read(annotations, key+"request", key+"limit", 1, &a.Err)
	}
	a.Annotations.readOwn(annotations, &a.Err)
	return a
}

// ReadUpdate reads the annotations of an update.
func ReadUpdate(annotations map[string]string) (w Wish, err error) {
	w.readOwn(annotations, &err)
	return w, err
}

// readOwn reads this shim's annotations, which replace the pod's.
func (w *Wish) readOwn(annotations map[string]string, err *error) {
	w.read(annotations, AnnotationRequest, AnnotationLimit, 0, err)
}

// read reads two values. The error of the first that cannot be parsed is added to err; such a value
// asks for something, without amounts.
func (w *Wish) read(values map[string]string, request, limit string, unit uint64, err *error) {
	get := func(name string, list *Amounts, from *string) {
		text, ok := values[name]
		if !ok {
			return
		}
		amounts, failed := Parse(text, unit)
		if failed != nil && *err == nil {
			*err = fmt.Errorf("%.256q: %w", name, failed)
		}
		if failed != nil {
			amounts = Amounts{{}}
		}
		*list, *from = amounts, name
	}
	get(request, &w.Request, &w.RequestFrom)
	get(limit, &w.Limit, &w.LimitFrom)
}
