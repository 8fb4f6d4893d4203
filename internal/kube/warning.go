// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Warning is a warning about an object that cannot be served unchanged.
type Warning struct {
	Kind            Kind
	Namespace, Name string
	Reason          string // one word, "NotServed"
	Text            string
	// Everywhere is set if the agents of all nodes report the same.
	Everywhere bool
}

// Warn stores an Event about an object, as `kubectl describe` shows it: from a node's agent, or one for all nodes if
// node is empty. The same warning again only changes the time of its Event. It does nothing if the object is gone.
func (c *Client) Warn(ctx context.Context, node string, w Warning) error {
	if err := c.warn(ctx, node, w); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("event of %s %s/%s: %w", w.Kind.Resource, w.Namespace, w.Name, err)
	}
	return nil
}

func (c *Client) warn(ctx context.Context, node string, w Warning) error {
	at, err := c.served(ctx, w.Kind)
	if err != nil || at.Version == "" {
		return err
	}
	o, err := c.dynamic.Resource(at.resource()).Namespace(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	hash := fnv.New64a()
	_, _ = fmt.Fprint(hash, node, o.GetUID(), w.Reason, w.Text) // it never fails
	now := time.Now().UTC().Format(time.RFC3339)
	namespace := cmp.Or(w.Namespace, metav1.NamespaceDefault)
	source := map[string]any{"component": "mustang-agent"}
	if node != "" {
		source["host"] = node
	}
	event := map[string]any{
		"apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": w.Reason, "message": w.Text,
		"metadata": map[string]any{"namespace": namespace, "name": fmt.Sprintf("%s.%x", w.Name, hash.Sum64())},
		"involvedObject": map[string]any{
			"apiVersion": o.GetAPIVersion(), "kind": o.GetKind(), "namespace": w.Namespace, "name": w.Name, "uid": string(
				o.GetUID()),
		},
		"source": source, "firstTimestamp": now, "lastTimestamp": now, "count": int64(1),
	}
	to := c.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace(namespace)
	object := &unstructured.Unstructured{Object: event}
	_, err = to.Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		patch := fmt.Appendf(nil, `{"lastTimestamp": %q}`, now)
		_, err = to.Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsConflict(err) {
			err = nil // the agents of other nodes set the time just now
		}
	}
	return err
}
