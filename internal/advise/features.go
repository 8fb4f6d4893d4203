// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policies "mustang/internal/policy/manifest"
	"mustang/internal/service/manifest"
)

// feature is a kind of objects that Mustang ignores. Versions are tried in their order.
type feature struct {
	group, resource string
	versions        []string
	text            string
}

const (
	notEnforced = "policies of this kind: not enforced"
	noBGP       = "BGP: none"
	onePool     = "pools of load-balancer addresses: list them in --lb-pool"
)

// featureKinds are the kinds of other networks whose objects lose their effect.
var featureKinds = []feature{
	{"cilium.io", "ciliumnetworkpolicies", []string{"v2"}, notEnforced},
	{"cilium.io", "ciliumclusterwidenetworkpolicies", []string{"v2"}, notEnforced},
	{"cilium.io", "ciliumegressgatewaypolicies", []string{"v2"}, "egress gateways: none"},
	{"cilium.io", "ciliumlocalredirectpolicies", []string{"v2"}, "redirection to pods of the node: none"},
	{"cilium.io", "ciliumenvoyconfigs", []string{"v2"}, "Envoy: none"},
	{"cilium.io", "ciliumclusterwideenvoyconfigs", []string{"v2"}, "Envoy: none"},
	{"cilium.io", "ciliumbgpclusterconfigs", []string{"v2", "v2alpha1"}, noBGP},
	{"cilium.io", "ciliumbgppeeringpolicies", []string{"v2alpha1"}, noBGP},
	{"cilium.io", "ciliumloadbalancerippools", []string{"v2", "v2alpha1"}, onePool},
	{calico, "networkpolicies", []string{"v1"}, notEnforced},
	{calico, "globalnetworkpolicies", []string{"v1"}, notEnforced},
	{calico, "hostendpoints", []string{"v1"}, "policies for nodes: none"},
	{calico, "bgppeers", []string{"v1"}, noBGP},
	{"crd.antrea.io", "networkpolicies", []string{"v1beta1"}, notEnforced},
	{"crd.antrea.io", "clusternetworkpolicies", []string{"v1beta1"}, notEnforced},
	{"crd.antrea.io", "egresses", []string{"v1beta1"}, "egress gateways: none"},
	{"k8s.ovn.org", "egressfirewalls", []string{"v1"}, notEnforced},
	{"k8s.ovn.org", "egressips", []string{"v1"}, "egress gateways: none"},
	{"policy.networking.k8s.io", "adminnetworkpolicies", []string{"v1alpha1"},
		"policies of this kind: not enforced, Mustang reads ClusterNetworkPolicy"},
	{"policy.networking.k8s.io", "baselineadminnetworkpolicies", []string{"v1alpha1"},
		"policies of this kind: not enforced, Mustang reads ClusterNetworkPolicy"},
}

// unsupportedNodes notes the nodes that Mustang refuses.
func (r *reading) unsupportedNodes() {
	for _, refused := range []struct {
		text  string
		nodes []string
	}{
		{"nodes with a kernel older than 6.6: refused", r.old}, {"nodes with Windows: refused", r.windows},
		{"nodes without spec.podCIDRs: Mustang needs the controller manager's --allocate-node-cidrs", r.withoutRange},
	} {
		if len(refused.nodes) > 0 {
			r.unsupported(refused.text, refused.nodes...)
		}
	}
	if r.Network == "flannel" && r.Overlay == "wireguard" {
		r.unsupported(wireGuard)
	}
}

// features looks for objects that lose their effect.
func (r *reading) features() {
	for _, f := range featureKinds {
		var found []string
		r.each(kindOf(f.group, f.versions[0], f.resource),
			func(o Object) { found = append(found, nameOf(o)) }, f.versions[1:]...)
		if len(found) > 0 {
			r.unsupported(f.resource+"."+f.group+": "+f.text, found...)
		}
	}
	r.each(kindOf(calico, "v1", "felixconfigurations"), func(o Object) {
		if on, _, _ := unstructured.NestedBool(o.Object, "spec", "wireguardEnabled"); on {
			r.unsupported(wireGuard)
		}
		if on, _, _ := unstructured.NestedBool(o.Object, "spec", "bpfEnabled"); on {
			r.link = "" // no lab has Calico's eBPF
		}
	})
	r.classed(kindOf("gateway.networking.k8s.io", "v1", "gatewayclasses"), "controllerName", "gateways",
		"gatewayClassName")
	r.classed(kindOf("networking.k8s.io", "v1", "ingressclasses"), "controller", "ingresses", "ingressClassName")
}

// classed looks for objects whose class is Cilium's. The controller and the class are names of fields.
func (r *reading) classed(classes Kind, controller, objects, class string) {
	var own, found []string
	r.each(classes, func(o Object) {
		if by, _, _ := unstructured.NestedString(o.Object, "spec", controller); strings.Contains(by, "cilium") {
			own = append(own, o.GetName())
		}
	})
	if len(own) == 0 {
		return
	}
	r.each(kindOf(classes.Group, "v1", objects), func(o Object) {
		if name, _, _ := unstructured.NestedString(o.Object, "spec", class); slices.Contains(own, name) {
			found = append(found, nameOf(o))
		}
	})
	if len(found) > 0 {
		r.unsupported(objects+" of Cilium: none, install another controller", found...)
	}
}

// services counts Services, and notes each Service that Mustang does not fully serve.
func (r *reading) services() {
	all := manifest.NewCluster(manifest.Options{Node: r.first})
	var global []string
	broken := map[string]string{}
	note := func(o Object, put func(manifest.Name, []byte) error) {
		data, err := json.Marshal(o.Object)
		if err == nil {
			err = put(manifest.Name{Namespace: o.GetNamespace(), Name: o.GetName()}, data)
		}
		if err != nil {
			broken[nameOf(o)] = err.Error()
		}
	}
	unread := len(r.Unread)
	r.each(kindOf("", "v1", "services"), func(o Object) {
		labels := o.GetLabels()
		ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP")
		if labels["service.kubernetes.io/service-proxy-name"] != "" || ip == "" || ip == "None" {
			return
		}
		ports, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports")
		r.Ports += len(ports)
		if o.GetAnnotations()["service.cilium.io/global"] == "true" {
			global = append(global, nameOf(o))
		}
		note(o, func(n manifest.Name, data []byte) error { _, err := all.PutService(n, data); return err })
	})
	r.uncounted = len(r.Unread) > unread
	r.each(kindOf("discovery.k8s.io", "v1", "endpointslices"), func(o Object) {
		endpoints, _, _ := unstructured.NestedSlice(o.Object, "endpoints")
		r.Endpoints += len(endpoints)
		note(o, func(n manifest.Name, data []byte) error { _, err := all.PutSlice(n, data); return err })
	})
	for _, n := range all.Names() {
		switch set, err := all.Snapshot(n).Set(); {
		case err != nil:
			broken[n.String()] = err.Error()
		case len(set.NotServed) > 0:
			broken[n.String()] = set.NotServed[0]
		}
	}
	r.unsupportedWith("Services that Mustang does not serve in full", broken)
	if len(global) > 0 {
		r.unsupported("Services of several clusters: none", global...)
	}
}

// policies looks for policies that Mustang cannot read. It isolates the pods that they select.
func (r *reading) policies() {
	broken := map[string]string{}
	look := func(o Object) {
		data, err := json.Marshal(o.Object)
		if err == nil {
			_, err = policies.Read(bytes.NewReader(data))
		}
		if err != nil {
			broken[nameOf(o)] = strings.TrimPrefix(err.Error(), "document 1: ")
		}
	}
	r.each(kindOf("networking.k8s.io", "v1", "networkpolicies"), look)
	r.each(kindOf("policy.networking.k8s.io", "v1beta1", "clusternetworkpolicies"), look, "v1alpha2")
	r.unsupportedWith("policies that Mustang cannot read: their pods are isolated", broken)
}

// unsupportedWith notes a feature with its objects, each with its reason.
func (r *reading) unsupportedWith(feature string, reasons map[string]string) {
	var found []string
	for name, reason := range reasons {
		found = append(found, fmt.Sprintf("%s (%s)", name, strings.TrimPrefix(reason, "Service "+name+": ")))
	}
	if slices.Sort(found); len(found) > 0 {
		r.unsupported(feature, found...)
	}
}

func nameOf(o Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}
