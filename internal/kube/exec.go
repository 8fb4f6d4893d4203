// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Get writes the answer of the API server to a path, "/api/v1/nodes?limit=500".
func (c *Client) Get(ctx context.Context, path string, to io.Writer) error {
	body, err := c.rest.Get().RequestURI(path).Stream(ctx)
	if err != nil {
		return fmt.Errorf("get %s: %w", path, err)
	}
	defer body.Close()
	_, err = io.Copy(to, body)
	return err
}

// PodOn is a pod, and the node that it is on; empty: none yet.
type PodOn struct {
	Name, Node string
	// Restarted is whether one of its containers has ended and runs again.
	Restarted bool
}

// CheckSelector returns an error if a text does not select by labels, as in `kubectl get -l`.
func CheckSelector(text string) error {
	_, err := labels.Parse(text)
	return err
}

// PodsOf returns the pods of a namespace that labels select, as in `kubectl get -l`.
func (c *Client) PodsOf(ctx context.Context, namespace, selector string) (pods []PodOn, err error) {
	// A stream has the API server's own words for an error.
	body, err := c.rest.Get().AbsPath("/api/v1/namespaces/", namespace, "/pods").Param("labelSelector", selector).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("list pods of namespace %s: %w", namespace, err)
	}
	defer body.Close()
	var list corev1.PodList
	if err := json.NewDecoder(body).Decode(&list); err != nil {
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
