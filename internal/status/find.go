package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Find returns the one container of a pod with this name, or, if pod is "", the one with this ID or
// NAMESPACE/ID, of which the end may be left out, or with this name in Docker. The error says which
// there are.
func Find(all []Bundle, namespace, pod, name string) (b Bundle, err error) {
	found, what := byID(all, name), fmt.Sprintf("container %.256q", name)
	if pod != "" {
		found = byPod(all, namespace, pod, name)
		what = strings.TrimPrefix(fmt.Sprintf("%s of pod %.256q", what, namespace+"/"+pod), `container "" of `)
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return b, fmt.Errorf("%s is not on this host (with a GPU: %s); if it was refused, the reason is in the pod's events or the output of docker or ctr, and in containerd's log",
			what, cmp.Or(labels(slices.DeleteFunc(all, hasNoRecord)), "none"))
	}
	return b, fmt.Errorf("%s may be %s: choose with --container", what, labels(found))
}

// byID finds a container by ID or NAMESPACE/ID, of which the end may be left out, or by its name in
// Docker, which comes before the beginning of an ID.
func byID(all []Bundle, name string) (found []Bundle) {
	var begin []Bundle
	for _, b := range all {
		id := b.ID
		if strings.Contains(name, "/") {
			id = b.Namespace + "/" + b.ID
		}
		if id == name || name != "" && DockerName(b.Namespace, b.ID) == name {
			found = append(found, b)
		} else if name != "" && strings.HasPrefix(id, name) {
			begin = append(begin, b)
		}
	}
	if len(found) > 0 {
		return found
	}
	return begin
}

// byPod finds the containers of a pod; without a name those with a GPU, if there are any.
func byPod(all []Bundle, namespace, pod, name string) (found []Bundle) {
	for _, b := range all {
		who, err := b.Container()
		if err == nil && !who.Sandbox && who.Namespace == namespace && who.Pod == pod && (name == "" || who.Name == name) {
			found = append(found, b)
		}
	}
	if given := slices.DeleteFunc(slices.Clone(found), hasNoRecord); name == "" && len(given) > 0 {
		return given
	}
	return found
}

func hasNoRecord(b Bundle) bool {
	_, err := b.Plan()
	return err != nil
}

// labels lists containers as --container takes them, with the pod and the name that --pod goes
// with.
func labels(list []Bundle) string {
	var texts []string
	for _, b := range list {
		text := b.Namespace + "/" + b.ID
		if who, err := b.Container(); err == nil && who.Name != "" {
			text += fmt.Sprintf(" (%.256q)", who.Namespace+"/"+who.Pod+"/"+who.Name)
		} else if name := DockerName(b.Namespace, b.ID); name != "" {
			text += fmt.Sprintf(" (%.256q)", name)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}
