// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var definitions = Kind{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// errUndefined means that the API server lacks a definition of a kind.
var errUndefined = errors.New("no definition")

// served returns a kind at the version that the cluster serves; without a definition, none and errUndefined. It does
// not use the group lists: they omit kinds whose versions are all switched off, and all kinds while an API server
// starts. A 404 of a proxy, which names no definition, is an error.
func (c *Client) served(ctx context.Context, k Kind) (Kind, error) {
	if k.Former == "" {
		return k, nil
	}
	name := k.Resource + "." + k.Group
	o, err := c.dynamic.Resource(definitions.resource()).Get(ctx, name, metav1.GetOptions{})
	if s := new(apierrors.StatusError); errors.As(err, &s) && apierrors.IsNotFound(s) && s.ErrStatus.Details != nil &&
		s.ErrStatus.Details.Name == name {
		return Kind{}, errUndefined
	}
	if err != nil {
		return k, fmt.Errorf("get the definition of %s, as the ClusterRole of this version allows: %w", name, err)
	}
	versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions") // none are served if it is no slice
	for _, version := range []string{k.Version, k.Former} {
		for _, v := range versions {
			if v, ok := v.(map[string]any); ok && v["served"] == true && v["name"] == version {
				k.Version = version
				return k, nil
			}
		}
	}
	return k, fmt.Errorf("%s is served neither as %s nor as %s: what is installed stays", name, k.Version, k.Former)
}

// emptyFor is how long lists must be empty until stored objects count as gone: a starting API server may return empty
// lists.
const emptyFor = time.Minute

// failed ends a series of empty lists.
func (s *store) failed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.empty = time.Time{}
}

// doubt returns why an empty list is not accepted. Deleting a definition deletes its objects first: objects without a
// delete event stay.
func (s *store) doubt(undefined bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := len(s.names)
	if !s.listed && s.Installed != nil {
		known = max(known, s.Installed(s.kind))
	}
	switch {
	case known == 0:
		return nil
	case undefined && s.listed:
		return fmt.Errorf("the definition of %s is gone, its %d objects were not deleted: what is installed stays",
			s.kind.Resource, known)
	case s.empty.IsZero():
		s.empty = time.Now()
	}
	if time.Since(s.empty) < emptyFor {
		return fmt.Errorf("an empty list of %s, although %d are known: what is installed stays for a minute",
			s.kind.Resource, known)
	}
	return nil
}
