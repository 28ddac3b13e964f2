package kubernetes

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// strictly decodes an object into its Go type, which has every field of it.
func strictly(t *testing.T, o unstructured.Unstructured, into any) {
	t.Helper()
	text, err := o.MarshalJSON()
	testtree.Check(t, err)
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		t.Errorf("%s: %v\n%s", o.GetKind(), err, text)
	}
}

// What Prometheus, its operator and Grafana find the metrics, alerts and dashboard by.
func TestChartsMonitoring(t *testing.T) {
	all := objects(t, template(t, "--set", "metrics.port=3476,metrics.service=true,metrics.podMonitor.create=true,metrics.podMonitor.interval=1m,metrics.podMonitor.labels.release=p",
		"--set", "metrics.rules.create=true,metrics.rules.labels.release=p,metrics.dashboard.create=true"))
	find := func(path string) unstructured.Unstructured {
		t.Helper()
		o, ok := all[path+release]
		if !ok {
			t.Fatalf("no %s%s", path, release)
		}
		return o
	}
	const operators = "/apis/monitoring.coreos.com/v1/namespaces/" + releaseNamespace
	var set appsv1.DaemonSet
	var service corev1.Service
	var monitor monitoringv1.PodMonitor
	var rule monitoringv1.PrometheusRule
	strictly(t, find("/apis/apps/v1/namespaces/"+releaseNamespace+"/daemonsets/"), &set)
	strictly(t, find("/api/v1/namespaces/"+releaseNamespace+"/services/"), &service)
	strictly(t, find(operators+"/podmonitors/"), &monitor)
	strictly(t, find(operators+"/prometheusrules/"), &rule)

	pod := labels.Set(set.Spec.Template.Labels)
	port := set.Spec.Template.Spec.Containers[1].Ports[0]
	if p := service.Spec.Ports[0]; !labels.SelectorFromSet(service.Spec.Selector).Matches(pod) || p.TargetPort.StrVal != port.Name || p.Port != port.ContainerPort || service.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("%+v", service.Spec)
	}
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	testtree.Check(t, err)
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	if !selector.Matches(pod) || *endpoint.Port != port.Name || endpoint.Interval != "1m" || endpoint.HonorLabels || monitor.Labels["release"] != "p" || rule.Labels["release"] != "p" {
		t.Errorf("%+v %+v", monitor, rule.ObjectMeta)
	}
	var file monitoringv1.PrometheusRuleSpec
	text, err := os.ReadFile(chart + "/files/rules.yaml")
	testtree.Check(t, err)
	testtree.Check(t, yaml.UnmarshalStrict(text, &file))
	if !reflect.DeepEqual(rule.Spec, file) || len(file.Groups) == 0 {
		t.Errorf("the rules are not those of the file:\n%+v", rule.Spec)
	}
	board, ok := all["/api/v1/namespaces/"+releaseNamespace+"/configmaps/"+release+"-dashboard"]
	data, _, _ := unstructured.NestedString(board.Object, "data", "nvidia-shim.json")
	if want, err := os.ReadFile(chart + "/files/dashboard.json"); !ok || err != nil || strings.TrimSpace(data) != strings.TrimSpace(string(want)) || board.GetLabels()["grafana_dashboard"] != "1" {
		t.Errorf("%v %v %.200s", board.GetLabels(), err, data)
	}
	for path, o := range all {
		if o.GetAPIVersion() == "v1" {
			shared.apply(t, path+"?dryRun=All&force=true", o)
		}
	}
}
