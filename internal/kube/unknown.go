// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// checkUnknown returns nil if the API server's own list of groups or resources lacks a kind. That a request has found nothing is not enough
// to take all objects of the kind for gone: a proxy before the API server may have answered.
func (c *Client) checkUnknown(ctx context.Context, k Kind) error {
	var groups metav1.APIGroupList
	if err := c.discover(ctx, "/apis", "APIGroupList", &groups); err != nil {
		return err
	}
	hasVersion := func(v metav1.GroupVersionForDiscovery) bool { return v.Version == k.Version }
	if !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == k.Group && slices.ContainsFunc(g.Versions, hasVersion) }) {
		return nil
	}
	path := "/apis/" + k.Group + "/" + k.Version
	var resources metav1.APIResourceList
	if err := c.discover(ctx, path, "APIResourceList", &resources); err != nil {
		return err
	}
	if slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == k.Resource }) {
		return fmt.Errorf("%s has %s, and the request for it was answered as if it had not", path, k.Resource)
	}
	return nil
}

// discover reads a list of what the API server has.
func (c *Client) discover(ctx context.Context, path, kind string, to runtime.Object) error {
	data, err := c.rest.Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := json.Unmarshal(data, to); err != nil || to.GetObjectKind().GroupVersionKind().Kind != kind {
		return fmt.Errorf("%s: the answer is no %s", path, kind)
	}
	return nil
}
