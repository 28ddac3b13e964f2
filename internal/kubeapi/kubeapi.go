package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// ServiceAccount is the directory of a pod with the token of its service account and the
// certificate of the API server.
const ServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// component is the reporter of events.
const component = "nvidia-shim"

// limit is how long an answer of the API server may take.
const limit = 30 * time.Second

// Node is a node of a cluster, whose labels one watch keeps up to date.
type Node struct {
	name   string
	client metadata.ResourceInterface
	events dynamic.ResourceInterface
	synced func() bool
	labels cache.MutationCache

	mu  sync.Mutex
	err error // of the latest request for the watch
}

// Follow watches the node with this name, until ctx ends, in the cluster in which this process runs
// as a pod. A watch that fails is tried again with growing, random delays.
func Follow(ctx context.Context, name, account string) (*Node, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is not a pod")
	}
	// The client reads both files again: the kubelet replaces them before they expire.
	config := &rest.Config{
		Host: "https://" + net.JoinHostPort(host, port), BearerTokenFile: filepath.Join(account, "token"),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(account, "ca.crt")},
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	n := &Node{name: name, client: client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})}
	// The API server takes events about what has no namespace in this one.
	n.events = objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace(metav1.NamespaceDefault)
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: n.listWatch(), ObjectType: &metav1.PartialObjectMetadata{}, Handler: cache.ResourceEventHandlerFuncs{},
	})
	n.synced = informer.HasSynced
	// What a change returns is newer than the watch for a moment.
	n.labels = cache.NewIntegerResourceVersionMutationCacheWithOptions(logr.Discard(), store, cache.MutationCacheOptions{})
	go informer.RunWithContext(klog.NewContext(ctx, logr.Discard())) // Labels returns its errors
	return n, nil
}

func (n *Node) listWatch() cache.ListerWatcher {
	own := fields.OneTermEqualSelector(metav1.ObjectNameField, n.name).String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = own
			list, err := n.client.List(ctx, o)
			n.note(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = own
			w, err := n.client.Watch(ctx, o)
			// An API server that cannot begin a watch with what there is gets a List instead.
			if o.SendInitialEvents == nil || !apierrors.IsInvalid(err) {
				n.note(err)
			}
			return w, err
		},
	}
}

func (n *Node) note(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
}

// Labels returns the node's labels, which the caller does not change. It asks nothing: it fails if
// the watch does.
func (n *Node) Labels(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		synced := n.synced()
		n.mu.Lock()
		err := n.err
		n.mu.Unlock()
		switch {
		case err != nil:
			return nil, fmt.Errorf("watch node %q: %w", n.name, err)
		case synced:
			node, err := n.known()
			if err != nil {
				return nil, err
			}
			return node.Labels, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("watch node %q: no answer of the API server: %w", n.name, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// known returns the latest version of the node.
func (n *Node) known() (*metav1.PartialObjectMetadata, error) {
	object, ok, err := n.labels.GetByKey(n.name)
	if err != nil {
		return nil, err
	}
	node, isNode := object.(*metav1.PartialObjectMetadata)
	if !ok || !isNode {
		return nil, fmt.Errorf("the cluster has no node %q", n.name)
	}
	return node, nil
}

// SetLabels changes these labels; nil removes one.
func (n *Node) SetLabels(ctx context.Context, labels map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	changed, err := n.client.Patch(ctx, n.name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("label node %q: %w", n.name, err)
	}
	n.labels.Mutation(changed)
	return nil
}

// Types of an event.
const (
	Normal  = "Normal"
	Warning = "Warning"
)

// maxMessage bounds the message of an event, in bytes, as the API server does.
const maxMessage = 1024

// Report creates an event about the node: its type, its reason in one word, and a message. It needs
// what Labels has read. The API server forgets the event after an hour.
func (n *Node) Report(ctx context.Context, kind, reason, message string) error {
	node, err := n.known()
	if err != nil {
		return err
	}
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-len("…")], "") + "…"
	}
	now := time.Now().UTC().Format(time.RFC3339)
	event := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       map[string]any{"generateName": n.name + "."},
		"involvedObject": map[string]any{"apiVersion": "v1", "kind": "Node", "name": n.name, "uid": string(node.UID)},
		"type":           kind, "reason": reason, "message": message,
		"firstTimestamp": now, "lastTimestamp": now, "count": int64(1),
		"source": map[string]any{"component": component, "host": n.name}, "reportingComponent": component, "reportingInstance": n.name,
	}}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if _, err := n.events.Create(ctx, event, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("report an event of node %q: %w", n.name, err)
	}
	return nil
}
