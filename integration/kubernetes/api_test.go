package kubernetes

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// api is a client of the API server: HTTP and JSON, as kubectl's, without its size.
type api struct {
	base, token string
	http        *http.Client
}

// apiError is an answer other than 2xx.
type apiError struct {
	code int
	text string
}

func (e *apiError) Error() string {
	return fmt.Sprintf("%d %s: %s", e.code, http.StatusText(e.code), e.text)
}

func hasCode(err error, code int) bool {
	e, ok := errors.AsType[*apiError](err)
	return ok && e.code == code
}

func isNotFound(err error) bool { return hasCode(err, http.StatusNotFound) }

func newAPI(base, token string) *api {
	// The server signs its certificate itself, and the network is the test's own.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	return &api{base: base, token: token, http: &http.Client{Transport: transport, Timeout: 30 * time.Second}}
}

// kubeconfig is the file by which the kubelet and the scheduler find the API server.
func (a *api) kubeconfig() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
`, a.base, a.token)
}

// do sends in as JSON and reads the answer into out; either may be nil.
func (a *api) do(method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	return a.send(method, path, "application/json", body, out)
}

// send is do for a body of any type.
func (a *api) send(method, path, contentType string, body []byte, out any) error {
	data, err := a.raw(method, path, contentType, body)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// raw sends a request and returns the answer's body.
func (a *api) raw(method, path, contentType string, body []byte) ([]byte, error) {
	request, err := http.NewRequest(method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	if body != nil {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := a.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 != 2 {
		var status metav1.Status
		text := string(data)
		if json.Unmarshal(data, &status) == nil && status.Message != "" {
			text = status.Message
		}
		return nil, fmt.Errorf("%s %s: %w", method, path, &apiError{response.StatusCode, text})
	}
	return data, nil
}
