// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// Get writes the API server's answer to a path, "/api/v1/nodes?limit=500".
func (c *Client) Get(ctx context.Context, path string, to io.Writer) error {
	body, err := c.rest.Get().RequestURI(path).Stream(ctx)
	if err != nil {
		return fmt.Errorf("get %s: %w", path, err)
	}
	defer body.Close()
	_, err = io.Copy(to, body)
	return err
}

// PodOn is a pod, and the node that it is on; empty: not scheduled yet.
type PodOn struct {
	Name, Node string
	Restarted  bool // whether one of its containers has ended and runs again
}

// CheckSelector returns an error if a text is not a label selector, as in `kubectl get -l`.
func CheckSelector(text string) error {
	_, err := labels.Parse(text)
	return err
}

// PodsOf returns the pods of a namespace that labels select, as in `kubectl get -l`.
func (c *Client) PodsOf(ctx context.Context, namespace, selector string) (pods []PodOn, err error) {
	// A stream error contains the API server's own text.
	body, err := c.rest.Get().AbsPath("/api/v1/namespaces/", namespace, "/pods").Param("labelSelector",
		selector).Stream(ctx)
	var list corev1.PodList
	if err == nil {
		defer body.Close()
		err = json.NewDecoder(body).Decode(&list)
	}
	if err != nil {
		return nil, fmt.Errorf("list pods of namespace %s: %w", namespace, err)
	}
	for _, p := range list.Items {
		restarted := func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 }
		pods = append(pods, PodOn{p.Name, p.Spec.NodeName, slices.ContainsFunc(p.Status.ContainerStatuses, restarted)})
	}
	return pods, nil
}

// Exec runs a command in a pod.
func (c *Client) Exec(ctx context.Context, run ExecCommand, streams ExecStreams) error {
	return Exec(ctx, c.config, run, streams)
}

// ExecCommand is a command in a container of a pod.
type ExecCommand struct {
	Namespace, Pod, Container string
	Words                     []string
}

// ExecStreams are the streams of a command. Any goroutine may use them. Stdin may be nil.
type ExecStreams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Exec runs a command. It fails with the server's error, the exit code, or at once with the cause of the context's end.
func Exec(ctx context.Context, config *rest.Config, run ExecCommand, streams ExecStreams) error {
	exec, err := executor(ctx, config, run, streams.Stdin != nil)
	if err == nil {
		done := make(chan error, 1)
		go func() {
			done <- exec.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: streams.Stdin, Stdout: streams.Stdout,
				Stderr: streams.Stderr})
		}()
		select { // the library obeys the context once it is connected
		case err = <-done:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("run %q in pod %s/%s: %w", run.Words, run.Namespace, run.Pod, err)
	}
	return nil
}

// executor uses WebSocket, and SPDY if the API server or a proxy before it does not support WebSocket.
func executor(ctx context.Context, config *rest.Config, run ExecCommand, stdin bool) (remotecommand.Executor, error) {
	target, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	parameters := url.Values{"container": {run.Container}, "stdout": {"true"}, "stderr": {"true"}, "command": run.Words}
	if stdin {
		parameters.Set("stdin", "true")
	}
	target = target.JoinPath("api/v1/namespaces", run.Namespace, "pods", run.Pod, "exec")
	target.RawQuery = parameters.Encode()
	socket, err := remotecommand.NewWebSocketExecutor(config, "GET", target.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", target)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return ctx.Err() == nil && (httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err))
	})
}

// Node is the network part of a Node object.
type Node struct {
	Zone string // the node's zone; empty if it is in none
	// Addresses are its internal addresses, External the addresses for clients outside, both in the object's order.
	// PodCIDRs are the ranges of its pods.
	Addresses, External []netip.Addr
	PodCIDRs            []netip.Prefix
	Available           bool      // whether a condition reports that pods can be attached
	Leaving             bool      // set if the node is being deleted, or the cluster autoscaler is about to delete it
	Ready               bool      // whether its kubelet is ready
	Excluded            bool      // whether it must not serve addresses of load balancers
	Created             time.Time // when the object was made; UID identifies it
	UID                 string
	Key                 string // the public key of WireGuard that its agent has published; empty: none
}

const taintDeleted = "ToBeDeletedByClusterAutoscaler"

// NodeOf reads a Node object.
func NodeOf(object jsontext.Value) (n Node, err error) {
	var o corev1.Node
	if err := json.Unmarshal(object, &o); err != nil {
		return n, fmt.Errorf("object Node: %w", err)
	}
	n = Node{Zone: o.Labels[corev1.LabelTopologyZone], Leaving: o.DeletionTimestamp != nil,
		Created: o.CreationTimestamp.Time, UID: string(o.UID), Key: o.Annotations[KeyAnnotation]}
	_, n.Excluded = o.Labels[corev1.LabelNodeExcludeBalancers]
	for _, t := range o.Spec.Taints {
		n.Leaving = n.Leaving || t.Key == taintDeleted
	}
	for _, text := range o.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return n, fmt.Errorf("object Node: spec.podCIDRs: %w", err)
		}
		n.PodCIDRs = append(n.PodCIDRs, p.Masked())
	}
	for _, a := range o.Status.Addresses {
		of := map[corev1.NodeAddressType]*[]netip.Addr{corev1.NodeInternalIP: &n.Addresses,
			corev1.NodeExternalIP: &n.External}[a.Type]
		if of == nil {
			continue
		}
		addr, err := netip.ParseAddr(a.Address)
		if err != nil {
			return n, fmt.Errorf("object Node: status.addresses: %w", err)
		}
		*of = append(*of, addr.Unmap())
	}
	for _, c := range o.Status.Conditions {
		n.Available = n.Available || c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse
		n.Ready = n.Ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	return n, nil
}

// SetAvailable sets the condition NetworkUnavailable of a Node to False: pods can be attached to its network.
func (c *Client) SetAvailable(ctx context.Context, node string) error {
	now := time.Now().UTC().Format(time.RFC3339)
	patch := fmt.Appendf(nil, `{"status": {"conditions": [{"type": "NetworkUnavailable", "status": "False",
"reason": "MustangIsUp", "message": "mustang agent has set up the network of pods", "lastTransitionTime": %q,
"lastHeartbeatTime": %[1]q}]}}`, now)
	_, err := c.dynamic.Resource(Nodes.resource()).Patch(ctx, node, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("set condition %s of node %s: %w", corev1.NodeNetworkUnavailable, node, err)
	}
	return nil
}

// SetKey publishes the public key of a node's WireGuard device in its Node object; empty: it removes the key. It needs
// no more permission than SetAvailable.
func (c *Client) SetKey(ctx context.Context, node, key string) error {
	value := map[string]any{KeyAnnotation: nil}
	if key != "" {
		value[KeyAnnotation] = key
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": value}})
	if err == nil {
		_, err = c.dynamic.Resource(Nodes.resource()).Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{},
			"status")
	}
	if err != nil {
		return fmt.Errorf("set annotation %s of node %s: %w", KeyAnnotation, node, err)
	}
	return nil
}
