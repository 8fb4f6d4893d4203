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
	Created         string // when the object was created, as in [Meta]
	Reason          string // one word, "NotServed"
	Text            string
	Everywhere      bool // set if the agents of all nodes report the same
}

// Warn stores an Event about an object, as `kubectl describe` shows it: from a node's agent, or one for all nodes if
// node is empty. The same warning of a node again only changes the time of its Event, and of all nodes nothing. It does
// nothing if the object is gone.
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
	name := func(object string) string {
		hash := fnv.New64a()
		_, _ = fmt.Fprint(hash, node, at.Resource, object, w.Reason, w.Text) // it never fails
		return fmt.Sprintf("%s.%x", w.Name, hash.Sum64())
	}
	now := time.Now().UTC().Format(time.RFC3339)
	namespace, id := cmp.Or(w.Namespace, metav1.NamespaceDefault), name(w.Created)
	to := c.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace(namespace)
	if w.Everywhere {
		if _, err := to.Get(ctx, id, metav1.GetOptions{}); err == nil || !apierrors.IsNotFound(err) {
			return err // another node has stored it
		}
	}
	o, err := c.dynamic.Resource(at.resource()).Namespace(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !w.Everywhere {
		id = name(string(o.GetUID()))
	}
	source := map[string]any{"component": "mustang-agent"}
	if node != "" {
		source["host"] = node
	}
	event := map[string]any{
		"apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": w.Reason, "message": w.Text,
		"metadata": map[string]any{"namespace": namespace, "name": id},
		"involvedObject": map[string]any{
			"apiVersion": o.GetAPIVersion(), "kind": o.GetKind(), "namespace": w.Namespace, "name": w.Name, "uid": string(
				o.GetUID()),
		},
		"source": source, "firstTimestamp": now, "lastTimestamp": now, "count": int64(1),
	}
	object := &unstructured.Unstructured{Object: event}
	_, err = to.Create(ctx, object, metav1.CreateOptions{})
	switch there := apierrors.IsAlreadyExists(err); {
	case there && w.Everywhere: // another node has just stored it
		err = nil
	case there:
		patch := fmt.Appendf(nil, `{"lastTimestamp": %q}`, now)
		_, err = to.Patch(ctx, id, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return err
}
