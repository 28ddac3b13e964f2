package simhost

import (
	"encoding/json"
	"encoding/pem"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

const (
	nodeName     = "node"
	nodeToken    = "secret"
	readyLabel   = "nvidia-shim.io/ready"
	versionLabel = "nvidia-shim.io/version"
)

// NodeAPI serves the labels of a node like the API server.
type NodeAPI struct {
	// Env are the variables of a pod.
	Env []string

	mu      sync.Mutex
	labels  map[string]string
	rounds  int // of the pod, which begin with a request for the labels
	patches int
}

// NewNodeAPI starts a server, and writes the files of a service account into a directory.
func NewNodeAPI(t testing.TB, account string) *NodeAPI {
	t.Helper()
	n := &NodeAPI{labels: map[string]string{"kubernetes.io/hostname": nodeName}}
	server := httptest.NewTLSServer(n)
	t.Cleanup(server.Close)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, text := range map[string]string{"token": nodeToken, "ca.crt": string(certificate)} {
		if err := os.WriteFile(filepath.Join(account, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n.Env = []string{"NODE_NAME=" + nodeName, "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	return n
}

func (n *NodeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.URL.Path != "/api/v1/nodes/"+nodeName || r.Header.Get("Authorization") != "Bearer "+nodeToken {
		http.Error(w, "{}", http.StatusForbidden)
		return
	}
	var node struct {
		Metadata struct {
			Labels map[string]*string `json:"labels"`
		} `json:"metadata"`
	}
	if r.Method == http.MethodPatch {
		n.patches++
		if json.NewDecoder(r.Body).Decode(&node) != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" {
			http.Error(w, "{}", http.StatusBadRequest)
			return
		}
	} else {
		n.rounds++
	}
	for name, value := range node.Metadata.Labels {
		delete(n.labels, name)
		if value != nil {
			n.labels[name] = *value
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"labels": n.labels}})
}

// Want checks the labels, and how often they were written.
func (n *NodeAPI) Want(t testing.TB, ready, version string, patches int) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	want := map[string]string{"kubernetes.io/hostname": nodeName}
	if ready != "" {
		want[readyLabel] = ready
	}
	if version != "" {
		want[versionLabel] = version
	}
	if !maps.Equal(n.labels, want) || n.patches != patches {
		t.Errorf("the labels are %v after %d changes, want %v after %d", n.labels, n.patches, want, patches)
	}
}

// Ready returns the label that says whether the node is ready.
func (n *NodeAPI) Ready() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.labels[readyLabel]
}

// Rounds returns how many rounds of the pod have begun.
func (n *NodeAPI) Rounds() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rounds
}

// SetLabel sets a label as an operator does.
func (n *NodeAPI) SetLabel(name, value string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.labels[name] = value
}
