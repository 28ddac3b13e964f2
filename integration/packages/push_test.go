package packages

import (
	"bufio"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const helm = "../../bin/kubernetes/helm"

// startRegistry starts crane's registry behind TLS and a password for the rest of the test, and
// sets what programs need to reach it.
func startRegistry(t *testing.T) (crane string) {
	t.Helper()
	dir := t.TempDir()
	crane = filepath.Join(dir, "crane")
	run(t, "go", "build", "-C", "../../packaging", "-trimpath", "-o", crane, "github.com/google/go-containerregistry/cmd/crane")
	cmd := exec.Command(crane, "registry", "serve", "--address", "127.0.0.1:0")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(log).ReadString('\n')
	_, port, ok := strings.Cut(strings.TrimSpace(line), "serving on port ")
	if err != nil || !ok {
		t.Fatalf("%q: %v", line, err)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:" + port})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "someone" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"REGISTRY": strings.TrimPrefix(server.URL, "https://") + "/owner/project", "REGISTRY_USER": "someone", "REGISTRY_PASSWORD": "secret",
		"SSL_CERT_DIR": dir, "DOCKER_CONFIG": dir,
	} {
		t.Setenv(name, value)
	}
	return crane
}

// testPush pushes the release of a clone as the workflow does. The registry has the bytes of dist/,
// and the chart names the image there, which it returns.
func testPush(t *testing.T, clone, crane string) (image string) {
	t.Helper()
	dist, registry, pulled := filepath.Join(clone, "dist"), os.Getenv("REGISTRY"), t.TempDir()
	out := run(t, filepath.Join(clone, "packaging/push.sh"), dist)
	outputs := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		outputs[name] = value
	}
	digest := outputs["image-digest"]
	if !strings.HasPrefix(digest, "sha256:") || outputs["image"] != registry+"/nvidia-shim-node@"+digest || !strings.HasPrefix(outputs["chart"], registry+"/nvidia-shim@sha256:") {
		t.Fatalf("the registry is %s:\n%s", registry, out)
	}

	run(t, crane, "pull", "--format=oci", outputs["image"], filepath.Join(pulled, "image"))
	run(t, "diff", "-r", filepath.Join(dist, "nvidia-shim-node/blobs"), filepath.Join(pulled, "image/blobs"))
	run(t, helm, "pull", "oci://"+registry+"/nvidia-shim", "--version", "1.2.3-rc.1", "--destination", pulled)
	run(t, "cmp", filepath.Join(dist, "nvidia-shim-1.2.3-rc.1.tgz"), filepath.Join(pulled, "nvidia-shim-1.2.3-rc.1.tgz"))
	if got := strings.TrimSpace(run(t, crane, "digest", outputs["chart"])); !strings.HasSuffix(outputs["chart"], "@"+got) {
		t.Errorf("the chart is %s, want %s", got, outputs["chart"])
	}
	_, image, _ = strings.Cut(run(t, helm, "template", "oci://"+registry+"/nvidia-shim", "--version", "1.2.3-rc.1"), `image: "`)
	image, _, _ = strings.Cut(image, `"`)
	if got := strings.TrimSpace(run(t, crane, "digest", image)); got != digest {
		t.Errorf("%s, the chart's image, is %s, want %s", image, got, digest)
	}

	t.Setenv("REGISTRY", "127.0.0.1:1/another")
	if out, err := exec.Command(filepath.Join(clone, "packaging/push.sh"), dist).CombinedOutput(); err == nil || !strings.Contains(string(out), "make packages REGISTRY=127.0.0.1:1/another") {
		t.Errorf("a push to another registry than the chart's: %v\n%s", err, out)
	}
	return image
}
