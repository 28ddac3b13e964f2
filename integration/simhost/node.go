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
	"strconv"
	"sync"
	"testing"
)

const (
	nodeName     = "node"
	nodeToken    = "secret"
	readyLabel   = "nvidia-shim.io/ready"
	versionLabel = "nvidia-shim.io/version"
)

// NodeAPI serves the labels of a node like the API server: one watch, and changes.
type NodeAPI struct {
	// Env are the variables of a pod.
	Env []string

	mu      sync.Mutex
	labels  map[string]string
	version int           // of the node
	changed chan struct{} // closed when the version grows
	patches int
}

// NewNodeAPI serves at a listener, and writes the files of a service account into a directory.
func NewNodeAPI(t testing.TB, account string, listener net.Listener) *NodeAPI {
	t.Helper()
	n := &NodeAPI{labels: map[string]string{"kubernetes.io/hostname": nodeName}, version: 1, changed: make(chan struct{})}
	server := httptest.NewUnstartedServer(n)
	server.Listener.Close()
	server.Listener = listener
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections() // a watch does not end by itself
		server.Close()
	})
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, text := range map[string]string{"token": nodeToken, "ca.crt": string(certificate)} {
		if err := os.WriteFile(filepath.Join(account, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n.Env = []string{"NODE_NAME=" + nodeName, "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	return n
}

func (n *NodeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	switch {
	case r.Header.Get("Authorization") != "Bearer "+nodeToken:
		http.Error(w, "{}", http.StatusForbidden)
	case r.Method == http.MethodPatch && r.URL.Path == "/api/v1/nodes/"+nodeName && r.Header.Get("Content-Type") == "application/merge-patch+json":
		n.patch(w, r)
	case r.Method == http.MethodGet && r.URL.Path == "/api/v1/nodes" && query.Get("fieldSelector") == "metadata.name="+nodeName && query.Get("sendInitialEvents") == "true":
		n.watch(w, r)
	default:
		http.Error(w, "{}", http.StatusBadRequest)
	}
}

func (n *NodeAPI) patch(w http.ResponseWriter, r *http.Request) {
	var node struct {
		Metadata struct {
			Labels map[string]*string `json:"labels"`
		} `json:"metadata"`
	}
	if json.NewDecoder(r.Body).Decode(&node) != nil {
		http.Error(w, "{}", http.StatusBadRequest)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.patches++
	for name, value := range node.Metadata.Labels {
		n.set(name, value)
	}
	_ = json.NewEncoder(w).Encode(n.object(nil))
}

// watch sends the node, the mark of the end of what there is, and each later version.
func (n *NodeAPI) watch(w http.ResponseWriter, r *http.Request) {
	kind, events := "ADDED", json.NewEncoder(w)
	for {
		n.mu.Lock()
		object, bookmark, changed := n.object(nil), n.object(map[string]string{"k8s.io/initial-events-end": "true"}), n.changed
		n.mu.Unlock()
		if events.Encode(map[string]any{"type": kind, "object": object}) != nil {
			return
		}
		if kind == "ADDED" && events.Encode(map[string]any{"type": "BOOKMARK", "object": bookmark}) != nil {
			return
		}
		kind = "MODIFIED"
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

// object is what the API server answers if it is asked for metadata alone.
func (n *NodeAPI) object(annotations map[string]string) map[string]any {
	return map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{
		"name": nodeName, "uid": "1", "resourceVersion": strconv.Itoa(n.version), "labels": maps.Clone(n.labels), "annotations": annotations,
	}}
}

// set sets a label, or removes it.
func (n *NodeAPI) set(name string, value *string) {
	delete(n.labels, name)
	if value != nil {
		n.labels[name] = *value
	}
	n.version++
	close(n.changed)
	n.changed = make(chan struct{})
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

// SetReady changes the label that says whether the node is ready.
func (n *NodeAPI) SetReady(value string) { n.SetLabel(readyLabel, value) }

// SetLabel sets a label as an operator does.
func (n *NodeAPI) SetLabel(name, value string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.set(name, &value)
}
