package kubernetes

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// simulatedNodes are nodes with a GPU that only the API server knows: kubelets is their kubelet.
type simulatedNodes struct {
	c     *cluster
	count int
	// broken is the node on which pods of the chart do not become ready once it is upgraded.
	broken string
}

func simulatedName(i int) string { return fmt.Sprintf("simulated-%02d", i) }

// create makes the nodes for the rest of the test.
func (s simulatedNodes) create(t *testing.T) {
	t.Helper()
	for i := range s.count {
		name := simulatedName(i)
		resources := corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110")}
		testtree.Check(t, s.c.do("POST", "/api/v1/nodes", corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"nvidia.com/gpu.present": "true"}},
			Status: corev1.NodeStatus{
				Capacity: resources, Allocatable: resources,
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		}, nil))
		t.Cleanup(func() { testtree.Check(t, s.c.do("DELETE", "/api/v1/nodes/"+name, nil, nil)) })
	}
}

// kubelets starts and ends the nodes' pods until stop is closed, and returns the first error.
func (s simulatedNodes) kubelets(stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(50 * time.Millisecond):
		}
		var list corev1.PodList
		if err := s.c.do("GET", "/api/v1/namespaces/"+releaseNamespace+"/pods?labelSelector=app.kubernetes.io%2Fname%3D"+release, nil, &list); err != nil {
			return err
		}
		for _, pod := range list.Items {
			pod.Namespace = releaseNamespace
			if err := s.sync(&pod); err != nil && !isNotFound(err) && !hasCode(err, http.StatusConflict) {
				return err
			}
		}
	}
}

// sync does for a pod what a kubelet does.
func (s simulatedNodes) sync(pod *corev1.Pod) error {
	switch {
	case pod.Spec.NodeName == "":
		return nil
	case pod.DeletionTimestamp != nil:
		return s.c.do("DELETE", podPath(pod)+"?gracePeriodSeconds=0", nil, nil)
	case pod.Status.Phase == corev1.PodRunning:
		return nil
	}
	ready := corev1.ConditionTrue
	if pod.Spec.NodeName == s.broken && pod.Labels["pod-template-generation"] != "1" {
		ready = corev1.ConditionFalse
	}
	status := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}
	body, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	return s.c.send("PATCH", podPath(pod)+"/status", "application/merge-patch+json", body, nil)
}

// A node that breaks in an upgrade, or was broken before, does not keep the others from theirs with
// the chart's defaults.
func TestOneBrokenNodeDoesNotStopARollout(t *testing.T) {
	c := shared
	nodes := simulatedNodes{c: c, count: 50, broken: simulatedName(17)}
	c.startControllers(t)
	nodes.create(t)
	stop, ended := make(chan struct{}), make(chan error)
	go func() { ended <- nodes.kubelets(stop) }()
	t.Cleanup(func() {
		close(stop)
		testtree.Check(t, <-ended)
	})
	install(t)
	await := func(generation int64, ready int32) {
		t.Helper()
		if err := c.await("the rollout", func() error {
			var set appsv1.DaemonSet
			err := c.do("GET", "/apis/apps/v1/namespaces/"+releaseNamespace+"/daemonsets/"+release, nil, &set)
			if s := set.Status; err == nil && (s.ObservedGeneration != generation || s.DesiredNumberScheduled != 50 || s.UpdatedNumberScheduled != 50 || s.NumberReady != ready) {
				err = fmt.Errorf("%+v", s)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	await(1, 50)
	for i, memory := range []string{"256Mi", "300Mi"} {
		if _, err := helmRelease(t, "upgrade", packagedChart(t), "--reuse-values", "--set", "resources.limits.memory="+memory); err != nil {
			t.Fatal(err)
		}
		await(int64(i+2), 49)
	}
}
