package kubernetes

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubeapi"
)

// account writes the files of a service account, for the API server of the tests.
func account(t *testing.T, token string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	certificate, err := os.ReadFile(filepath.Join(shared.dir, "apiserver/apiserver.crt"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"ca.crt": string(certificate), "token": token + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "6443")
	return dir
}

// requests counts the requests for nodes of package kubeapi in this process, by their verb.
func (c *cluster) requests(t *testing.T) map[string]int {
	t.Helper()
	log, err := os.ReadFile(c.auditLog())
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for line := range strings.Lines(string(log)) {
		var event struct{ Stage, Verb, UserAgent, RequestURI string }
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		begun := event.Stage == "ResponseComplete" && event.Verb != "watch" || event.Stage == "ResponseStarted"
		if begun && strings.HasPrefix(event.UserAgent, filepath.Base(os.Args[0])+"/") {
			count[event.Verb]++
		}
	}
	return count
}

// The labels of a node, as nvidia-shimctl node follows and changes them: by one watch and the
// changes, however often it asks.
func TestLabelsOfANode(t *testing.T) {
	c := shared
	asked := c.requests(t)
	node, err := kubeapi.Follow(t.Context(), nodeName, account(t, c.token))
	if err != nil {
		t.Fatal(err)
	}
	labels := func() map[string]string {
		t.Helper()
		now, err := node.Labels(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	before := maps.Clone(labels())
	if before["kubernetes.io/hostname"] != nodeName {
		t.Fatalf("%v", before)
	}
	for _, step := range []struct {
		set  map[string]any
		want string
	}{
		{map[string]any{"nvidia-shim.io/ready": "true", "nvidia-shim.io/version": "v1.2.3-4-gabc-dirty"}, "true v1.2.3-4-gabc-dirty"},
		{map[string]any{"nvidia-shim.io/ready": "false"}, "false v1.2.3-4-gabc-dirty"},
		{map[string]any{"nvidia-shim.io/ready": nil, "nvidia-shim.io/version": nil}, " "},
	} {
		if err := node.SetLabels(t.Context(), step.set); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			now := labels()
			if got := now["nvidia-shim.io/ready"] + " " + now["nvidia-shim.io/version"]; got != step.want {
				t.Fatalf("after %v: %q", step.set, got)
			}
		}
	}
	if after := labels(); !maps.Equal(before, after) {
		t.Errorf("labels before: %v; after: %v", before, after)
	}
	remove := func(value string) {
		body := `{"metadata":{"labels":{"nvidia-shim.io/remove":` + value + `}}}`
		if err := c.send("PATCH", "/api/v1/nodes/"+nodeName, "application/merge-patch+json", []byte(body), nil); err != nil {
			t.Fatal(err)
		}
	}
	remove(`"true"`)
	testenv.Await(t, "a change of another client", func() bool { return labels()["nvidia-shim.io/remove"] == "true" })
	remove("null")
	testenv.Await(t, "its removal", func() bool { _, is := labels()["nvidia-shim.io/remove"]; return !is })
	if err := node.SetLabels(t.Context(), map[string]any{"nvidia-shim.io/ready": "not a label"}); err == nil || !strings.Contains(err.Error(), "Invalid value") {
		t.Errorf("a value that is none: %v", err)
	}
	now := c.requests(t)
	for verb, n := range asked {
		now[verb] -= n
	}
	// An API server that cannot begin a watch with what there is has a list first.
	maps.DeleteFunc(now, func(verb string, n int) bool { return n == 0 || verb == "list" && n == 1 })
	if want := map[string]int{"watch": 1, "patch": 4}; !maps.Equal(now, want) {
		t.Errorf("requests: %v, want %v", now, want)
	}
}

func TestLabelsThatCannotBeRead(t *testing.T) {
	for _, c := range []struct{ name, node, token, want string }{
		{"a node that is not there", "another", shared.token, `the cluster has no node "another"`},
		{"a token that is none", nodeName, "another", `watch node "` + nodeName + `": Unauthorized`},
	} {
		t.Run(c.name, func(t *testing.T) {
			node, err := kubeapi.Follow(t.Context(), c.node, account(t, c.token))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := node.Labels(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	t.Run("another certificate", func(t *testing.T) {
		dir := account(t, shared.token)
		if err := writeKey(filepath.Join(dir, "ca.crt")); err != nil {
			t.Fatal(err)
		}
		if _, err := kubeapi.Follow(t.Context(), nodeName, dir); err == nil {
			t.Error("it is believed")
		}
	})
}

// Events of a node, as nvidia-shimctl node reports them, are those that kubectl shows with it.
func TestEventsOfANode(t *testing.T) {
	c := shared
	node, err := kubeapi.Follow(t.Context(), nodeName, account(t, c.token))
	testtree.Check(t, err)
	_, err = node.Labels(t.Context())
	testtree.Check(t, err)
	long := strings.Repeat("é", 600)
	testtree.Check(t, node.Report(t.Context(), kubeapi.Warning, "GPUHealth", "GPU 0 is unhealthy"))
	testtree.Check(t, node.Report(t.Context(), kubeapi.Normal, "ShimReadiness", long))
	shown := mustRun(t, "kubectl", "describe", "node", nodeName)
	for _, want := range []string{`(?m)^  Warning +GPUHealth +\S+ +nvidia-shim +GPU 0 is unhealthy$`, `(?m)^  Normal +ShimReadiness +\S+ +nvidia-shim +é{510}…$`} {
		if !regexp.MustCompile(want).MatchString(shown) {
			t.Errorf("no %s in\n%s", want, shown)
		}
	}
	another, err := kubeapi.Follow(t.Context(), "another", account(t, c.token))
	testtree.Check(t, err)
	if err := another.Report(t.Context(), kubeapi.Normal, "GPUHealth", "none"); err == nil || !strings.Contains(err.Error(), `the cluster has no node "another"`) {
		t.Errorf("a node that is not there: %v", err)
	}
}
