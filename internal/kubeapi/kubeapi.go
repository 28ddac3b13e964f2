package kubeapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ServiceAccount is the directory of a pod with the token of its service account and the
// certificate of the API server.
const ServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// Node is a node of a cluster.
type Node struct{ url, account string }

// InCluster returns the node with this name in the cluster in which this process runs as a pod.
func InCluster(name, account string) (Node, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Node{}, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is not a pod")
	}
	u := url.URL{Scheme: "https", Host: net.JoinHostPort(host, port), Path: "/api/v1/nodes/" + url.PathEscape(name)}
	return Node{u.String(), account}, nil
}

// Labels returns the node's labels.
func (n Node) Labels(ctx context.Context) (map[string]string, error) {
	return n.do(ctx, http.MethodGet, nil)
}

// SetLabels changes these labels; nil removes one.
func (n Node) SetLabels(ctx context.Context, labels map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err == nil {
		_, err = n.do(ctx, http.MethodPatch, body)
	}
	return err
}

// do makes one request and returns the node's labels. The kubelet replaces token and certificate
// before they expire, so they are read each time.
func (n Node) do(ctx context.Context, method string, body []byte) (map[string]string, error) {
	token, err := os.ReadFile(filepath.Join(n.account, "token"))
	if err != nil {
		return nil, err
	}
	certificate, err := os.ReadFile(filepath.Join(n.account, "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, n.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Content-Type", "application/merge-patch+json")
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, n.url, err)
	}
	defer resp.Body.Close()
	var answer struct {
		Message  string
		Metadata struct{ Labels map[string]string }
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(&answer)
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s: %.256s", method, n.url, resp.Status, answer.Message)
	}
	return answer.Metadata.Labels, err
}
