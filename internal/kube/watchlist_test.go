// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	"k8s.io/client-go/features"

	"mustang/internal/kube/kubetest"
)

// watchLists is what the library takes for enabled: lists by watches too.
type watchLists struct{ features.Gates }

func (w watchLists) Enabled(f features.Feature) bool {
	return f == features.WatchListClient || w.Gates.Enabled(f)
}

// TestNoWatchList has the library watch instead of list, as KUBE_FEATURE_WatchListClient asks for and later versions do: objects are handed out all the same,
// and a kind that the cluster does not know holds nothing up.
func TestNoWatchList(t *testing.T) {
	had := features.FeatureGates()
	features.ReplaceFeatureGates(watchLists{had})
	t.Cleanup(func() { features.ReplaceFeatureGates(had) })
	s := kubetest.Start(t)
	s.Put(t, "/api/v1/services", `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"}}`)
	w := startOf(t, s, Services, ClusterNetworkPolicies)
	w.eventually(t, "first list", func() bool { return w.synced == 1 })
}
