package kubernetes

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubeapi"
)

// The labels of a node, as nvidia-shimctl node reads and writes them.
func TestLabelsOfANode(t *testing.T) {
	c, account := shared, t.TempDir()
	certificate, err := os.ReadFile(filepath.Join(c.dir, "apiserver/apiserver.crt"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(account, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("ca.crt", string(certificate))
	write("token", c.token+"\n")
	t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "6443")
	node, err := kubeapi.InCluster(nodeName, account)
	if err != nil {
		t.Fatal(err)
	}
	before, err := node.Labels(t.Context())
	if err != nil || before["kubernetes.io/hostname"] != nodeName {
		t.Fatalf("%v, %v", before, err)
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
		now, err := node.Labels(t.Context())
		if got := now["nvidia-shim.io/ready"] + " " + now["nvidia-shim.io/version"]; err != nil || got != step.want {
			t.Errorf("after %v: %q, %v", step.set, got, err)
		}
	}
	if after, err := node.Labels(t.Context()); err != nil || len(after) != len(before) {
		t.Errorf("labels before: %v; after: %v, %v", before, after, err)
	}
	if err := node.SetLabels(t.Context(), map[string]any{"nvidia-shim.io/ready": "not a label"}); err == nil || !strings.Contains(err.Error(), "422") {
		t.Errorf("a value that is none: %v", err)
	}
	missing, err := kubeapi.InCluster("another", account)
	if err == nil {
		_, err = missing.Labels(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), http.StatusText(http.StatusNotFound)) {
		t.Errorf("a node that is not there: %v", err)
	}
	// The kubelet replaces the files while the process runs.
	write("token", "another")
	if _, err := node.Labels(t.Context()); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a token that is none: %v", err)
	}
	write("token", c.token)
	write("ca.crt", "")
	if _, err := node.Labels(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate: %v", err)
	}
}
