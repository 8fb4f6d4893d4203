// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"mustang/internal/kube/kubetest"
)

const definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" +
	"clusternetworkpolicies.policy.networking.k8s.io"

func listOf(version string) string {
	return "/apis/policy.networking.k8s.io/" + version + "/clusternetworkpolicies"
}

func policy(t *testing.T, s *kubetest.Server, version, name string) {
	t.Helper()
	s.Put(t, listOf(version),
		fmt.Sprintf(`{"apiVersion": "policy.networking.k8s.io/%s", "kind": "ClusterNetworkPolicy", "metadata": {"name": %q}}`,
			version, name))
}

// answers answers with a status and a body, and counts the requests.
type answers struct {
	asked atomic.Int32
	code  int
	body  string
}

func (a *answers) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	a.asked.Add(1)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.code)
	_, _ = w.Write([]byte(a.body))
}

// notFound is the answer of an API server that lacks the object of a name; empty: it lacks the path.
func notFound(name string) *answers {
	return &answers{code: http.StatusNotFound, body: fmt.Sprintf(
		`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": "%s `+
			`not found", "details": {"name": %[1]q}}`, name)}
}

func defined(served string, off ...string) *answers {
	versions := []map[string]any{{"name": served, "served": true, "storage": true}}
	if served == "" {
		versions = nil
	}
	for _, v := range off {
		versions = append(versions, map[string]any{"name": v, "served": false})
	}
	body, _ := json.Marshal(map[string]any{"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
		"spec": map[string]any{"versions": versions}})
	return &answers{code: http.StatusOK, body: string(body)}
}

func serve(s *kubetest.Server, served, off string) {
	s.Handle(definition, defined(served, off))
	s.Handle(listOf(off), notFound(""))
	s.Handle(listOf(served), nil)
	s.Forget()
}

// TestVersions reads the version that a cluster serves, the newer one of two, and the other one once that is served
// alone.
func TestVersions(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	policy(t, s, "v1alpha2", "old")
	policy(t, s, "v1alpha2", "deny")
	w := startOf(t, s, ClusterNetworkPolicies)
	w.eventually(t, "v1alpha2 alone", func() bool { return w.synced == 2 })
	policy(t, s, "v1beta1", "deny")
	policy(t, s, "v1beta1", "new")
	s.Handle(definition, nil) // both
	s.Forget()
	w.eventually(t, "both", func() bool {
		return len(w.objects) == 2 && strings.Contains(w.objects["clusternetworkpolicies /new"], "v1beta1")
	})
	serve(s, "v1alpha2", "v1beta1")
	w.eventually(t, "v1alpha2 again", func() bool {
		return len(w.objects) == 2 &&
			w.objects["clusternetworkpolicies /old"] != ""
	})
	serve(s, "v1beta1", "v1alpha2")
	w.eventually(t, "v1beta1 alone", func() bool {
		return len(w.objects) == 2 &&
			w.objects["clusternetworkpolicies /new"] != ""
	})
	s.Delete(listOf("v1beta1"), "", "new")
	w.eventually(t, "a change", func() bool { return len(w.objects) == 1 })
}

// doubtful are answers after which installed objects stay.
type doubtful struct {
	kind    Kind
	list    string
	answers map[string]*answers
	counted string // the path whose requests are counted
	told    string
}

func allDoubtful() map[string]doubtful {
	const networkPolicies = "/apis/networking.k8s.io/v1/networkpolicies"
	listing := func(kind, items string) *answers {
		return &answers{code: http.StatusOK,
			body: fmt.Sprintf(`{"kind": "%sList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": %s}`,
				kind, items)}
	}
	empty := func(kind string) *answers { return listing(kind, "[]") }
	gone := &answers{code: http.StatusGone,
		body: `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Gone", "code": 410, "message": "gone"}`}
	proxy := func() *answers { return &answers{code: http.StatusNotFound, body: "default backend - 404"} }
	const neither = "clusternetworkpolicies.policy.networking.k8s.io is served neither as v1beta1 nor as v1alpha2: " +
		"what is installed stays"
	return map[string]doubtful{
		"all versions off": {ClusterNetworkPolicies, listOf("v1alpha2"),
			map[string]*answers{definition: defined("", "v1alpha2", "v1beta1"), listOf("v1alpha2"): notFound("")},
			definition, neither},
		"a later version": {ClusterNetworkPolicies, listOf("v1alpha2"),
			map[string]*answers{definition: defined("v1", "v1beta1"), listOf("v1alpha2"): notFound("")}, definition, neither},
		"a lost definition": {ClusterNetworkPolicies, listOf("v1alpha2"),
			map[string]*answers{definition: notFound("clusternetworkpolicies.policy.networking.k8s.io"),
				listOf("v1alpha2"): notFound("")}, definition,
			"the definition of clusternetworkpolicies is gone, its 1 objects were not deleted: what is installed stays"},
		"404 of a proxy": {ClusterNetworkPolicies, listOf("v1alpha2"), map[string]*answers{definition: proxy(),
			listOf("v1alpha2"): proxy()}, definition, "could not find the requested resource"},
		"404 of the list": {ClusterNetworkPolicies, listOf("v1alpha2"),
			map[string]*answers{listOf("v1alpha2"): notFound("")}, listOf("v1alpha2"), "not found"},
		"NetworkPolicies: 404": {NetworkPolicies, networkPolicies, map[string]*answers{networkPolicies: notFound("")},
			networkPolicies, "not found"},
		"a list of others": {NetworkPolicies, networkPolicies, map[string]*answers{networkPolicies: listing("Pod",
			`[{"metadata": {"name": "p"}}]`)}, networkPolicies, "not a list"},
		"no list of others": {NetworkPolicies, networkPolicies, map[string]*answers{networkPolicies: empty("Pod")},
			networkPolicies, "not a list"},
		"an empty item": {NetworkPolicies, networkPolicies,
			map[string]*answers{networkPolicies: listing("NetworkPolicy", `[{}]`)}, networkPolicies, "not a list"},
		"a null item": {NetworkPolicies, networkPolicies,
			map[string]*answers{networkPolicies: listing("NetworkPolicy", `[null]`)}, networkPolicies, "not a list"},
		"410 of each list": {NetworkPolicies, networkPolicies, map[string]*answers{networkPolicies: gone},
			networkPolicies, "gone"},
		"EndpointSlices: 404": {EndpointSlices, endpointSlices, map[string]*answers{endpointSlices: notFound("")},
			endpointSlices, "not found"},
		"an object": {Services, services, map[string]*answers{services: {code: http.StatusOK,
			body: `{"message": "down for maintenance"}`}}, services, "not a list"},
		"only items": {Services, services, map[string]*answers{services: {code: http.StatusOK,
			body: `{"items": []}`}}, services, "not a list"},
		"a success": {Services, services, map[string]*answers{services: {code: http.StatusOK,
			body: `{"kind": "Status", "apiVersion": "v1", "status": "Success"}`}}, services, "not a list"},
		"a list without items": {Services, services, map[string]*answers{services: {code: http.StatusOK,
			body: `{"kind": "ServiceList", "apiVersion": "v1", "metadata": {}}`}}, services, "not a list"},
	}
}

// TestInstalledStays has an API server, or a proxy, answer as if all objects were gone, though nobody deleted them.
// They stay, and this is reported until the objects can be read.
func TestInstalledStays(t *testing.T) {
	for name, c := range allDoubtful() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kubetest.Start(t)
			put := func(name string) {
				s.Put(t, c.list, fmt.Sprintf(`{"kind": "Any", "metadata": {"name": %q}}`, name))
			}
			put("deny")
			w := startOf(t, s, c.kind)
			w.eventually(t, "first list", func() bool { return w.synced == 1 })
			for path, a := range c.answers {
				s.Handle(path, a)
			}
			s.Forget()
			w.eventually(t, "asked, and told", func() bool {
				told := len(w.failing) > 0 && strings.Contains(w.failing[len(w.failing)-1], c.told)
				return told && c.answers[c.counted].asked.Load() >= 2 || len(w.objects) == 0
			})
			w.eventually(t, "what is installed", func() bool { return len(w.objects) == 1 })
			for path := range c.answers {
				s.Handle(path, nil)
			}
			put("more")
			w.eventually(t, "served again", func() bool { return len(w.objects) == 2 && w.failing[len(w.failing)-1] == "<nil>" })
		})
	}
}

// TestNotSynced starts at a cluster that serves a kind at no known version: the kind counts as unread until it is
// served, and this is reported. Without a definition there are no objects, until one is created.
func TestNotSynced(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	off := defined("v1", "v1beta1", "v1alpha2")
	s.Handle(definition, off)
	policy(t, s, "v1beta1", "deny")
	w := startOf(t, s, ClusterNetworkPolicies)
	w.eventually(t, "asked, and told", func() bool {
		return off.asked.Load() >= 2 && len(w.failing) == 1 &&
			w.synced == -1
	})
	s.Handle(definition, nil)
	w.eventually(t, "served", func() bool { return w.synced == 1 })

	s = kubetest.Start(t)
	w = startOf(t, s, ClusterNetworkPolicies)
	w.eventually(t, "no definition", func() bool { return w.synced == 0 && len(w.failing) == 0 })
	policy(t, s, "v1beta1", "deny")
	w.eventually(t, "a definition", func() bool { return len(w.objects) == 1 && len(w.failing) == 0 })
}
