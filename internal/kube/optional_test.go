// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"mustang/internal/kube/kubetest"
)

// TestNotFoundByProxy has something before the API server answer 404 at all paths: what an optional kind had stays.
func TestNotFoundByProxy(t *testing.T) {
	s := kubetest.Start(t)
	const list = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
	s.Put(t, list, `{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "deny"}}`)
	c, err := Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{objects: map[string]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		c.Watch(ctx, []Kind{ClusterNetworkPolicies}, Calls{On: w.on, Synced: func() {
			w.Lock()
			defer w.Unlock()
			w.synced = len(w.objects)
		}})
	}()
	w.eventually(t, "first list", func() bool { return w.synced == 1 })
	var asked atomic.Int32
	gone := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == list {
			asked.Add(1)
		}
		http.Error(w, "default backend - 404", http.StatusNotFound)
	})
	for _, path := range []string{list, "/apis", "/apis/policy.networking.k8s.io", "/apis/policy.networking.k8s.io/v1alpha2", "/version"} {
		s.Handle(path, gone)
	}
	s.Forget()
	w.eventually(t, "asked", func() bool { return asked.Load() >= 3 || len(w.objects) == 0 })
	if len(w.objects) != 1 {
		t.Errorf("after %d answers of a proxy there are %v", asked.Load(), w.objects)
	}
}
