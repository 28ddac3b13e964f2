package kubernetes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

const (
	chart         = "../../deploy/helm/nvidia-shim"
	kustomizeBase = "../../deploy/kustomize"
	// release is the chart's release, and the name of its objects.
	release = "nvidia-shim"
	// releaseNamespace is where the pages and the kustomize base put it.
	releaseNamespace = metav1.NamespaceSystem
)

// command runs helm or kustomize on the node's API server and returns what it prints.
func command(t testing.TB, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(filepath.Join(binDir(), name), args...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "KUBECONFIG=" + shared.kubeconfig()}
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%s %q: %w\n%s%s", name, args, err, out, exit.Stderr)
	}
	return string(out), err
}

func mustRun(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := command(t, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// helmRelease runs a verb of helm that changes the release.
func helmRelease(t testing.TB, verb string, args ...string) (string, error) {
	t.Helper()
	return command(t, "helm", append([]string{verb, release, "--namespace", releaseNamespace}, args...)...)
}

// dist finds the one file of a pattern that `make packages` made.
func dist(t testing.TB, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(testenv.ShimDir(), "../dist", pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("dist has the files %q of %s, %v: run make packages", found, pattern, err)
	}
	return found[0]
}

func packagedChart(t testing.TB) string {
	t.Helper()
	return dist(t, "nvidia-shim-[0-9]*.tgz")
}

// template renders the chart.
func template(t testing.TB, args ...string) string {
	t.Helper()
	out, err := helmRelease(t, "template", append([]string{chart}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// objects are those of a manifest, by their paths in the API.
func objects(t testing.TB, manifest string) map[string]unstructured.Unstructured {
	t.Helper()
	all := map[string]unstructured.Unstructured{}
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096); ; {
		var o unstructured.Unstructured
		switch err := decoder.Decode(&o); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		case o.Object != nil:
			all[path(o)] = o
		}
	}
}

// path is an object's path in the API.
func path(o unstructured.Unstructured) string {
	path := "/apis/" + o.GetAPIVersion()
	if o.GetAPIVersion() == "v1" {
		path = "/api/v1"
	}
	if ns := o.GetNamespace(); ns != "" {
		path += "/namespaces/" + ns
	}
	plural := strings.ToLower(o.GetKind()) + "s"
	plural = strings.NewReplacer("policys", "policies", "classs", "classes").Replace(plural)
	return path + "/" + plural + "/" + o.GetName()
}

func TestChartIsSound(t *testing.T) {
	mustRun(t, "helm", "lint", "--strict", "--quiet", chart)
	for value, place := range map[string]string{
		"unknown=1":                         "unknown",
		"image.repository=":                 "/image/repository",
		"image.tag=a b":                     "/image/tag",
		"image.pullPolicy=Sometimes":        "/image/pullPolicy",
		"runtimeClass.create=perhaps":       "/runtimeClass/create",
		"runtimeClass.handler=A B":          "/runtimeClass/handler",
		"maxUnavailable=0":                  "/maxUnavailable",
		"maxUnavailable=101%":               "/maxUnavailable",
		"metrics.port=70000":                "/metrics/port",
		"metrics.port=3477":                 "metrics.port: 3477 is the port of the readiness probe",
		"metrics.resources.limit=1":         "limit",
		"metrics.service=true":              "need metrics.port",
		"metrics.podMonitor.create=true":    "need metrics.port",
		"metrics.rules.create=true":         "need metrics.port",
		"metrics.podMonitor.interval=often": "/metrics/podMonitor/interval",
		"metrics.dashboard.labels.a.b=1":    "/metrics/dashboard/labels/a",
		"networkPolicy.create=2":            "/networkPolicy/create",
		"uninstall=1":                       "/uninstall",
		"args=--once":                       "/args",
		"config.policy=1":                   "/config",
		"config=[policy":                    "config: toml: line 1",
		"fromToolkit=1":                     "/fromToolkit",
		"setDefault=1":                      "/setDefault",
		"nodeSelector.a=1":                  "/nodeSelector/a",
		"tolerations[0].effect=No":          "/tolerations/0/effect",
		"resources.limit=1":                 "limit",
	} {
		if out, err := command(t, "helm", "template", chart, "--set", value); err == nil || !strings.Contains(err.Error(), place) {
			t.Errorf("%s: %v, want an error with %q\n%s", value, err, place, out)
		}
	}
	out := template(t, "--set", "image.repository=example.org/node,image.tag=1.2@sha256:"+strings.Repeat("0", 64), "--set", "imagePullSecrets[0].name=secret",
		"--set", "uninstall=true,args={--target,k3s}", "--set", "maxUnavailable=10%", "--set", "runtimeClass.create=false")
	for _, want := range []string{
		`image: "example.org/node:1.2@sha256:000`, "imagePullSecrets:\n        - name: secret", "- --uninstall\n            - \"--target\"\n            - \"k3s\"\n", "maxUnavailable: 10%",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if strings.Contains(out, "name: metrics") || strings.Contains(out, "ingress:") {
		t.Errorf("a listener without metrics.port in:\n%s", out)
	}
	if strings.Contains(out, "kind: RuntimeClass") {
		t.Errorf("a RuntimeClass in:\n%s", out)
	}
}

// What config holds reaches the node's command line as it is: the kubelet replaces $(NAME).
func TestChartConfiguresTheShim(t *testing.T) {
	const config = "[policy]\nkubernetes = \"audit\" # $(NODE_NAME) {{ .Values }}\n"
	name := filepath.Join(t.TempDir(), "values.yaml")
	simhost.WriteFile(t, name, fmt.Sprintf("{config: %q, fromToolkit: true, setDefault: false}", config))
	for _, tc := range []struct{ values, want []string }{
		{nil, nil}, {[]string{"--set", "setDefault=true"}, []string{"--set-default=true"}},
		{[]string{"--values", name}, []string{"--settings=" + strings.ReplaceAll(config, "$", "$$"), "--from-toolkit", "--set-default=false"}},
	} {
		var set appsv1.DaemonSet
		path := "/apis/apps/v1/namespaces/" + releaseNamespace + "/daemonsets/" + release
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects(t, template(t, tc.values...))[path].Object, &set); err != nil {
			t.Fatal(err)
		}
		if got := set.Spec.Template.Spec.Containers[0].Args; !slices.Equal(got[2:], tc.want) {
			t.Errorf("%q: %q, want %q", tc.values, got, tc.want)
		}
	}
}

// The listener is a container of its own, with its own memory, and reached by the configured peers.
func TestChartSeparatesTheListener(t *testing.T) {
	all := objects(t, template(t, "--set", "metrics.port=3476,metrics.args={--bin-dir=/opt}", "--set", "networkPolicy.from[0].podSelector.matchLabels.app=prometheus"))
	var set appsv1.DaemonSet
	var policy networkingv1.NetworkPolicy
	for path, into := range map[string]any{"/apis/apps/v1/namespaces/" + releaseNamespace + "/daemonsets/" + release: &set,
		"/apis/networking.k8s.io/v1/namespaces/" + releaseNamespace + "/networkpolicies/" + release: &policy} {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(all[path].Object, into); err != nil {
			t.Fatal(err)
		}
	}
	containers := set.Spec.Template.Spec.Containers
	if len(containers) != 2 || slices.ContainsFunc(containers[0].Args, func(arg string) bool { return strings.Contains(arg, "listen") }) ||
		!slices.Contains(containers[1].Command, "--listen=:3476") || !slices.Contains(containers[1].Command, "--bin-dir=/opt") || containers[1].Resources.Limits.Memory().IsZero() {
		t.Errorf("%+v", containers)
	}
	rules := policy.Spec.Ingress
	if len(rules) != 1 || len(rules[0].Ports) != 1 || rules[0].Ports[0].Port.IntValue() != 3476 || len(rules[0].From) != 1 || rules[0].From[0].PodSelector.MatchLabels["app"] != "prometheus" {
		t.Errorf("%+v", rules)
	}
}

// TestChartInstallsTheNode runs the commands.
func TestChartSaysHowToRemoveIt(t *testing.T) {
	const upgrade = "  helm upgrade other --namespace gpu CHART --reset-then-reuse-values --set uninstall=true,maxUnavailable=100%\n"
	const rest = "\n  kubectl get nodes -l nvidia-shim.io/version\n  helm uninstall other --namespace gpu\n"
	for value, want := range map[string]string{"uninstall=false": "\n" + upgrade + rest[1:], "uninstall=true": "\n" + rest} {
		out := mustRun(t, "helm", "install", "other", chart, "--namespace", "gpu", "--dry-run=client", "--set", value)
		_, notes, _ := strings.Cut(out, "NOTES:")
		if !strings.Contains(notes, want) || strings.Contains(notes, upgrade) != strings.Contains(want, upgrade) {
			t.Errorf("%s: no %q in:%s", value, want, notes)
		}
	}
}

// The chart with its default values, as it is packaged, too, and the kustomize base are the same
// objects, and the API server takes every field of them.
func TestChartAndKustomizeBaseAreTheSame(t *testing.T) {
	want, got := objects(t, template(t)), objects(t, mustRun(t, "kustomize", "build", kustomizeBase))
	for path := range want {
		if !reflect.DeepEqual(got[path], want[path]) {
			t.Errorf("%s: kustomize has\n%v\nthe chart\n%v", path, got[path], want[path])
		}
	}
	if len(got) != len(want) || len(want) != 8 {
		t.Errorf("kustomize has %d objects, the chart %d", len(got), len(want))
	}
	if out := mustRun(t, "helm", "template", release, packagedChart(t), "--namespace", releaseNamespace,
		"--set", "image.repository=localhost/nvidia-shim-node,image.tag=unreleased"); out != template(t) {
		t.Errorf("dist has another chart, run make packages:\n%s", out)
	}
	for path, o := range got {
		// The RuntimeClass of this name is that of the other tests.
		shared.apply(t, path+"?dryRun=All&force=true", o)
	}
}

// apply is a server-side apply that refuses unknown fields.
func (c *cluster) apply(t testing.TB, path string, o unstructured.Unstructured) {
	t.Helper()
	data, err := o.MarshalJSON()
	if err == nil {
		err = c.send("PATCH", path+"&fieldManager=test&fieldValidation=Strict", "application/apply-patch+yaml", data, nil)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, data)
	}
}

// chartObjects are the names of all objects that the chart can make, and of its releases.
func (c *cluster) chartObjects(t testing.TB) string {
	t.Helper()
	var names bytes.Buffer
	for _, path := range []string{
		"/api/v1/namespaces", "/api/v1/secrets", "/api/v1/serviceaccounts", "/api/v1/namespaces/" + releaseNamespace + "/pods", "/apis/apps/v1/daemonsets", "/apis/apps/v1/controllerrevisions", "/apis/networking.k8s.io/v1/networkpolicies",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
		"/apis/node.k8s.io/v1/runtimeclasses",
	} {
		var list unstructured.UnstructuredList
		if err := c.do("GET", path, nil, &list); err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			fmt.Fprintln(&names, path, o.GetName(), o.GetUID(), o.GetResourceVersion())
		}
	}
	return names.String()
}

// keepObjects checks that the API has what it has now when the rest of the test is cleaned up.
func keepObjects(t testing.TB) {
	t.Helper()
	before := shared.chartObjects(t)
	t.Cleanup(func() {
		if err := shared.await("the end of the release", func() error {
			if after := shared.chartObjects(t); after != before {
				return fmt.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// install installs the chart for the rest of the test, after which the API has what it had before.
func install(t testing.TB, args ...string) {
	t.Helper()
	keepObjects(t)
	if _, err := helmRelease(t, "install", append([]string{packagedChart(t)}, args...)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := helmRelease(t, "uninstall"); err != nil {
			t.Error(err)
		}
	})
}

func (c *cluster) runtimeClass(name string) (class nodev1.RuntimeClass, err error) {
	err = c.do("GET", "/apis/node.k8s.io/v1/runtimeclasses/"+name, nil, &class)
	return class, err
}

// The chart uses an existing RuntimeClass as it is; it upgrades and removes its own.
func TestChartAndTheRuntimeClass(t *testing.T) {
	was, err := shared.runtimeClass(handler)
	if err != nil {
		t.Fatal(err)
	}
	install(t)
	upgrade := func(args ...string) error {
		_, err := helmRelease(t, "upgrade", append([]string{packagedChart(t)}, args...)...)
		return err
	}
	if err := upgrade("--set", "runtimeClass.name="+annotatedHandler); err == nil || !strings.Contains(err.Error(), `RuntimeClass "nvidia-annotated" exists with handler "nvidia-annotated"`) {
		t.Errorf("a class with another handler: %v", err)
	}
	const own = "nvidia-chart"
	for range 2 { // the second finds its own
		if err := upgrade("--set", "runtimeClass.name="+own); err != nil {
			t.Fatal(err)
		}
		class, err := shared.runtimeClass(own)
		if err != nil || class.Handler != handler || class.Scheduling == nil || class.Scheduling.NodeSelector["nvidia-shim.io/ready"] != "true" || len(class.Scheduling.Tolerations) != 1 {
			t.Errorf("%v: %+v", err, class)
		}
	}
	if _, err := helmRelease(t, "rollback", "1"); err != nil {
		t.Fatal(err)
	}
	if class, err := shared.runtimeClass(own); !isNotFound(err) {
		t.Errorf("after the rollback: %v: %+v", err, class)
	}
	if class, err := shared.runtimeClass(handler); err != nil || class.ResourceVersion != was.ResourceVersion {
		t.Errorf("the class of another owner: %v: %+v, was %+v", err, class, was)
	}
}

// The kustomize base, too, leaves the RuntimeClass of another owner alone, if told so.
func TestKustomizeBaseBesideARuntimeClass(t *testing.T) {
	base := t.TempDir()
	edit := exec.Command(filepath.Join(binDir(), "kustomize"), "edit", "remove", "resource", "runtimeclass.yaml")
	edit.Dir = base
	if err := errors.Join(os.CopyFS(base, os.DirFS(kustomizeBase)), edit.Run()); err != nil {
		t.Fatal(err)
	}
	keepObjects(t)
	t.Cleanup(func() { mustRun(t, "kubectl", "delete", "--ignore-not-found", "-k", base) })
	if out := mustRun(t, "kubectl", "apply", "-k", base); !strings.Contains(out, "daemonset.apps/nvidia-shim created") || strings.Contains(out, "runtimeclass") {
		t.Error(out)
	}
}

// nodePod is an API client with the token of a pod of the chart on a node.
func (c *cluster) nodePod(t testing.TB) *api {
	t.Helper()
	pod := newPod("node-token", wait("main", plainImage))
	pod.Namespace, pod.Spec.ServiceAccountName, pod.Spec.RuntimeClassName = releaseNamespace, release, nil
	c.startPod(t, pod)
	var now corev1.Pod
	if err := c.do("GET", podPath(pod), nil, &now); err != nil {
		t.Fatal(err)
	}
	return newAPI(c.base, c.serviceAccountToken(t, &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: now.Name, UID: now.UID}))
}

// serviceAccountToken is a token of the chart's service account, as the kubelet asks for it.
func (c *cluster) serviceAccountToken(t testing.TB, bound *authenticationv1.BoundObjectReference) string {
	t.Helper()
	return c.tokenOf(t, release, bound)
}

func (c *cluster) tokenOf(t testing.TB, account string, bound *authenticationv1.BoundObjectReference) string {
	t.Helper()
	request := authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
	if err := c.do("POST", "/api/v1/namespaces/"+releaseNamespace+"/serviceaccounts/"+account+"/token", request, &request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// A node's pod may follow nodes, change labels nvidia-shim.io/* of its own node and report events about
// it; nothing else.
func TestChartGivesNoMoreRightsThanNeeded(t *testing.T) {
	c := shared
	install(t)
	const merge, node, other = "application/merge-patch+json", "/api/v1/nodes/" + nodeName, "/api/v1/nodes/other"
	if err := c.do("POST", "/api/v1/nodes", corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.NodeSpec{Unschedulable: true},
	}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.do("DELETE", other, nil, nil); err != nil {
			t.Error(err)
		}
	})
	pod, unbound := c.nodePod(t), newAPI(c.base, c.serviceAccountToken(t, nil))
	const label = `{"metadata":{"labels":{"nvidia-shim.io/test":"true"}}}`
	// The API server takes a moment to learn of the policy.
	if err := c.await("the policy", func() error {
		if err := unbound.send("PATCH", node, merge, []byte(label), nil); !hasCode(err, http.StatusUnprocessableEntity) {
			return fmt.Errorf("a token of no node: %w", errors.Join(err, errors.New("not refused")))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{label, `{"metadata":{"labels":{"nvidia-shim.io/test":null}}}`} {
		if err := pod.send("PATCH", node, merge, []byte(body), nil); err != nil {
			t.Error(err)
		}
	}
	event := func(namespace, kind, name string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Event","metadata":{"namespace":%q,"generateName":"a."},"involvedObject":{"kind":%q,"namespace":%q,"name":%q},"type":"Warning","reason":"Test"}`,
			namespace, kind, map[string]string{"Pod": namespace}[kind], name)
	}
	const events = "/api/v1/namespaces/default/events"
	if err := pod.do("POST", events, json.RawMessage(event("default", "Node", nodeName)), nil); err != nil {
		t.Error(err)
	}
	if err := pod.do("GET", "/api/v1/nodes?watch=true&timeoutSeconds=1&fieldSelector=metadata.name="+nodeName, nil, nil); err != nil {
		t.Error(err)
	}
	for _, tc := range []struct {
		method, path, body string
		code               int
	}{
		{"PATCH", other, label, http.StatusUnprocessableEntity},
		{"PATCH", node, `{"metadata":{"labels":{"kubernetes.io/hostname":"x"}}}`, http.StatusUnprocessableEntity},
		{"PATCH", node, `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`, http.StatusUnprocessableEntity},
		{"PATCH", node, `{"metadata":{"labels":{"another":""}}}`, http.StatusUnprocessableEntity},
		{"PATCH", node, `{"metadata":{"annotations":{"a":"b"}}}`, http.StatusUnprocessableEntity},
		{"PATCH", node, `{"metadata":{"finalizers":["a/b"]}}`, http.StatusUnprocessableEntity},
		{"PATCH", node, `{"spec":{"unschedulable":true}}`, http.StatusUnprocessableEntity},
		{"PATCH", node + "/status", `{"status":{"phase":"x"}}`, http.StatusForbidden},
		{"DELETE", node, "", http.StatusForbidden},
		{"GET", node, "", http.StatusForbidden},
		{"GET", "/api/v1/namespaces/" + releaseNamespace + "/secrets", "", http.StatusForbidden},
		{"GET", "/api/v1/pods", "", http.StatusForbidden},
		{"POST", events, event("default", "Node", "other"), http.StatusUnprocessableEntity},
		{"POST", events, event("default", "Pod", nodeName), http.StatusUnprocessableEntity},
		{"POST", "/api/v1/namespaces/" + releaseNamespace + "/events", event(releaseNamespace, "Pod", "node-token"), http.StatusUnprocessableEntity},
		{"GET", events, "", http.StatusForbidden},
		{"DELETE", events, "", http.StatusForbidden},
		{"POST", "/api/v1/namespaces/" + releaseNamespace + "/serviceaccounts/" + release + "/token", "{}", http.StatusForbidden},
	} {
		contentType := map[string]string{"PATCH": merge, "POST": "application/json"}[tc.method]
		if err := pod.send(tc.method, tc.path, contentType, []byte(tc.body), nil); !hasCode(err, tc.code) {
			t.Errorf("%s %s %s: %v, want %d", tc.method, tc.path, tc.body, err, tc.code)
		}
	}
	if err := c.send("PATCH", node, merge, []byte(`{"metadata":{"labels":{"another":""}}}`), nil); err != nil {
		t.Errorf("another user: %v", err)
	}
	if err := c.send("PATCH", node, merge, []byte(`{"metadata":{"labels":{"another":null}}}`), nil); err != nil {
		t.Error(err)
	}
}

// A kustomization may rename everything: the policy still applies to the service account.
func TestNamesOfAKustomizationKeepThePolicy(t *testing.T) {
	c := shared
	base, err := filepath.Abs(kustomizeBase)
	testtree.Check(t, err)
	dir := t.TempDir()
	relative, err := filepath.Rel(dir, base)
	testtree.Check(t, err)
	simhost.WriteFile(t, filepath.Join(dir, "kustomization.yaml"), "namePrefix: my-\nnameSuffix: -b\nresources: ["+relative+"]\n")
	for path, o := range objects(t, mustRun(t, "kustomize", "build", "--load-restrictor=LoadRestrictionsNone", dir)) {
		switch o.GetKind() {
		case "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
			c.apply(t, path+"?force=true", o)
			t.Cleanup(func() { testtree.Check(t, c.do("DELETE", path, nil, nil)) })
		}
	}
	account := newAPI(c.base, c.tokenOf(t, "my-nvidia-shim-b", nil)) // of no node
	if err := c.await("the policy", func() error {
		err := account.send("PATCH", "/api/v1/nodes/"+nodeName, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"nvidia-shim.io/test":null}}}`), nil)
		if !hasCode(err, http.StatusUnprocessableEntity) {
			return fmt.Errorf("not refused: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// What GPU Operator's validator runs once its toolkit is switched off (assets/state-operator-validation
// and validator/manifests of v26.7): its image says `void`.
func TestGPUOperatorsValidator(t *testing.T) {
	c := shared
	const image, namespace = "docker.io/test/validator:latest", "gpu-operator"
	if err := c.importAll(images.Image{
		Name: image, Config: images.Config{Env: []string{"PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=all"}, WorkingDir: "/"},
		Layers: []images.Layer{{Dir: filepath.Join(c.dir, "image")}},
	}); err != nil {
		t.Fatal(err)
	}
	c.namespace(t, namespace)
	c.use(t, strategy{list: envvar})
	privileged := func(name string) corev1.Container {
		return env(secured(run(name, image, "nvidia-smi", "-L"), corev1.SecurityContext{Privileged: new(true)}), "NVIDIA_VISIBLE_DEVICES", "all")
	}
	plugin := secured(with(run("plugin-validation", image, "nvidia-smi", "-L"), 1), corev1.SecurityContext{AllowPrivilegeEscalation: new(false)})
	for _, tc := range []struct {
		container corev1.Container
		gpus      int
	}{{privileged("toolkit-validation"), len(c.Driver.GPUs)}, {privileged("cuda-validation"), len(c.Driver.GPUs)}, {plugin, 1}} {
		pod := newPod(tc.container.Name, run("main", image, "/bin/true"))
		pod.Namespace, pod.Spec.InitContainers = namespace, []corev1.Container{tc.container}
		now := c.finish(t, pod)
		out := c.logs(t, pod, tc.container.Name)
		if got := strings.Count(out, "(UUID: GPU-"); now.Status.Phase != corev1.PodSucceeded || got != tc.gpus {
			t.Errorf("%s: %s with %d GPUs, want %d:\n%s", tc.container.Name, now.Status.Phase, got, tc.gpus, out)
		}
	}
}
