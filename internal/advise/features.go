// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policies "mustang/internal/policy/manifest"
	"mustang/internal/service/manifest"
)

// feature is a kind of objects that Mustang ignores. Versions are tried in their order.
type feature struct {
	group, resource, versions, text string
}

const (
	notEnforced  = "policies of this kind: not enforced"
	noBGP        = "no BGP"
	onePool      = "pools of load-balancer addresses: list them in --lb-pool"
	oldPolicy    = notEnforced + ", Mustang reads ClusterNetworkPolicy"
	noController = "Cilium runs the controller of this class: install another one"
)

// featureKinds are the kinds of other networks whose objects lose their effect.
var featureKinds = []feature{
	{"cilium.io", "ciliumnetworkpolicies", "v2", notEnforced},
	{"cilium.io", "ciliumclusterwidenetworkpolicies", "v2", notEnforced},
	{"cilium.io", "ciliumegressgatewaypolicies", "v2", "no egress gateways"},
	{"cilium.io", "ciliumlocalredirectpolicies", "v2", "no redirection to pods of the node"},
	{"cilium.io", "ciliumenvoyconfigs", "v2", "no Envoy"},
	{"cilium.io", "ciliumclusterwideenvoyconfigs", "v2", "no Envoy"},
	{"cilium.io", "ciliumbgpclusterconfigs", "v2 v2alpha1", noBGP},
	{"cilium.io", "ciliumbgppeeringpolicies", "v2alpha1", noBGP},
	{"cilium.io", "ciliumloadbalancerippools", "v2 v2alpha1", onePool},
	{calico, "networkpolicies", "v1", notEnforced},
	{calico, "globalnetworkpolicies", "v1", notEnforced},
	{calico, "hostendpoints", "v1", "no policies for nodes"},
	{calico, "bgppeers", "v1", noBGP},
	{"policy.networking.k8s.io", "adminnetworkpolicies", "v1alpha1", oldPolicy},
	{"policy.networking.k8s.io", "baselineadminnetworkpolicies", "v1alpha1", oldPolicy},
	// Cilium makes a class if its controller is on.
	{"networking.k8s.io", "ingressclasses", "v1", noController},
	{"gateway.networking.k8s.io", "gatewayclasses", "v1", noController},
}

// features looks for objects that lose their effect.
func (r *reading) features() {
	for _, f := range featureKinds {
		r.each(kindOf(f.group, f.versions, f.resource), func(o Object) {
			ingress, _, _ := unstructured.NestedString(o.Object, "spec", "controller")
			gateway, _, _ := unstructured.NestedString(o.Object, "spec", "controllerName")
			if f.text != noController || strings.Contains(ingress+gateway, "cilium") {
				r.unsupported(f.resource+"."+f.group+": "+f.text, nameOf(o))
			}
		})
	}
	r.each(kindOf(calico, "v1", "felixconfigurations"), func(o Object) {
		if on, _, _ := unstructured.NestedBool(o.Object, "spec", "wireguardEnabled"); on {
			r.unsupported(wireGuard)
		}
		if on, _, _ := unstructured.NestedBool(o.Object, "spec", "bpfEnabled"); on {
			r.link = other // no lab has Calico's eBPF
		}
	})
}

// services counts Services, and notes each Service that Mustang does not fully serve.
func (r *reading) services() {
	const notServed = "Services that Mustang does not serve in full"
	all := manifest.NewCluster(manifest.Options{Node: r.first})
	r.each(kindOf("", "v1", "services"), func(o Object) {
		ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP")
		if o.GetLabels()["service.kubernetes.io/service-proxy-name"] != "" || ip == "" || ip == "None" {
			return
		}
		ports, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports")
		r.Ports += len(ports)
		if o.GetAnnotations()["service.cilium.io/global"] == "true" {
			r.unsupported("Services of several clusters: none", nameOf(o))
		}
		r.check(notServed, o, func(n manifest.Name, data []byte) error { _, err := all.PutService(n, data); return err })
	})
	r.each(kindOf("discovery.k8s.io", "v1", "endpointslices"), func(o Object) {
		endpoints, _, _ := unstructured.NestedSlice(o.Object, "endpoints")
		r.Endpoints += len(endpoints)
		r.check(notServed, o, func(n manifest.Name, data []byte) error { _, err := all.PutSlice(n, data); return err })
	})
	for _, n := range all.Names() {
		set, err := all.Snapshot(n).Set()
		if err == nil && len(set.NotServed) > 0 {
			err = errors.New(set.NotServed[0])
		}
		if err != nil {
			r.refused(notServed, n.String(), err)
		}
	}
}

// policies looks for policies that Mustang cannot read. It isolates the pods that they select.
func (r *reading) policies() {
	read := func(o Object) {
		r.check("policies that Mustang cannot read: their pods are isolated", o, func(_ manifest.Name, data []byte) error {
			_, err := policies.Read(bytes.NewReader(data))
			return err
		})
	}
	r.each(kindOf("networking.k8s.io", "v1", "networkpolicies"), read)
	r.each(kindOf("policy.networking.k8s.io", "v1beta1 v1alpha2", "clusternetworkpolicies"), read)
}

// check notes an object that cannot be read, with the reason.
func (r *reading) check(feature string, o Object, read func(manifest.Name, []byte) error) {
	data, err := json.Marshal(o.Object)
	if err == nil {
		err = read(manifest.Name{Namespace: o.GetNamespace(), Name: o.GetName()}, data)
	}
	if err != nil {
		r.refused(feature, nameOf(o), err)
	}
}

func (r *reading) refused(feature, name string, err error) {
	reason := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "document 1: "), "Service "+name+": ")
	r.unsupported(feature, name+" ("+reason+")")
}

func nameOf(o Object) string {
	return strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
}
