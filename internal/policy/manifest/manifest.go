// SPDX-License-Identifier: Apache-2.0

// Package manifest reads network policies, with the objects that they select, from YAML or JSON. Unknown fields of a
// policy are refused.
package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mustang/internal/document"
	"mustang/internal/policy"
)

// Read reads all documents, as a cluster has them. Its error is one line. Policies are valid, and names unique.
func Read(r io.Reader) (Set, error) { return readAll(r, false) }

// ReadFile reads what a user has written. Unlike Read it also refuses unknown fields of objects, and invalid labels.
func ReadFile(r io.Reader) (Set, error) { return readAll(r, true) }

func readAll(r io.Reader, written bool) (Set, error) {
	s := &set{Set{seen: map[string]string{}}, written}
	if err := document.Each(r, s.add); err != nil {
		return Set{}, errors.New(document.OneLine(err.Error()))
	}
	for i, note := range s.Notes {
		s.Notes[i] = document.OneLine(note)
	}
	return s.Set, nil
}

var kinds = map[string]struct {
	versions   []string
	namespaced bool
	add        func(*set, document.Object, jsontext.Value) error
}{
	"NetworkPolicy": {[]string{"networking.k8s.io/v1"}, true, (*set).addNetworkPolicy},
	"ClusterNetworkPolicy": {[]string{"policy.networking.k8s.io/v1beta1", "policy.networking.k8s.io/v1alpha2"}, false,
		(*set).addClusterNetworkPolicy},
	"Pod":       {[]string{"v1"}, true, (*set).addPod},
	"Namespace": {[]string{"v1"}, false, (*set).addNamespace},
	"Node":      {[]string{"v1"}, false, (*set).addNode},
}

func (s *set) add(where string, data jsontext.Value) error {
	var o document.Object
	err := document.Decode(data, &o)
	if err == nil && o.Kind == "" {
		err = errors.New("kind: missing")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return document.EachObject(where, o, data, s.addObject)
}

// Kinds of the groups of Kubernetes with policies: the policy, and those without one.
var (
	policyOf = map[string]string{"networking.k8s.io": "NetworkPolicy", "policy.networking.k8s.io": "ClusterNetworkPolicy"}
	noPolicy = []string{"Ingress", "IngressClass", "IPAddress", "ServiceCIDR"}
)

// checkKind returns an error if an object that is not read may be a policy of Kubernetes.
func checkKind(o document.Object) error {
	group, _, found := strings.Cut(o.APIVersion, "/")
	policy := strings.HasSuffix(strings.ToLower(o.Kind), "networkpolicy")
	switch {
	case policyOf[group] != "" && kinds[o.Kind].add == nil && !slices.Contains(noPolicy, o.Kind) &&
		!strings.HasSuffix(o.Kind, "AdminNetworkPolicy"):
		return fmt.Errorf("kind: unknown kind %q: want %s", o.Kind, policyOf[group])
	case policy && (!found || group == "extensions" || strings.HasSuffix(group, "networking.k8s.io")):
		return fmt.Errorf("apiVersion: unknown version %s: want NetworkPolicy of networking.k8s.io/v1 or "+
			"ClusterNetworkPolicy of policy.networking.k8s.io/v1beta1 or v1alpha2", cmp.Or(o.APIVersion, "none"))
	}
	return nil
}

func (s *set) addObject(where string, o document.Object, data jsontext.Value) error {
	kind := kinds[o.Kind]
	name := o.Metadata.Name
	if kind.namespaced || kind.add == nil {
		o.Metadata.Namespace = cmp.Or(o.Metadata.Namespace, "default")
		name = o.Metadata.Namespace + "/" + name
	}
	object := o.Kind + " " + name
	origin := where + ": " + object
	read := slices.Contains(kind.versions, o.APIVersion)
	var err error
	if !read {
		err = checkKind(o)
	} else if s.written {
		err = document.Decode(data, &fields{}, json.RejectUnknownMembers(true))
	}
	switch {
	case err != nil:
	case !read:
		s.Notes = append(s.Notes, origin+": not read: want a policy, pod, namespace or node")
	case o.Metadata.Name == "":
		err = errors.New("metadata.name: missing")
	case !kind.namespaced && o.Metadata.Namespace != "":
		err = fmt.Errorf("metadata.namespace: a %s has none", o.Kind)
	case s.seen[object] != "":
		err = fmt.Errorf("it is there already: %s", s.seen[object])
	default:
		s.seen[object] = origin
		err = kind.add(s, o, data)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	return nil
}

type fields struct {
	Kind       string            `json:"kind"`
	APIVersion string            `json:"apiVersion"`
	Metadata   metav1.ObjectMeta `json:"metadata"`
	Spec       jsontext.Value    `json:"spec"`
	Status     jsontext.Value    `json:"status"`
}

// Closed returns a substitute for a policy that [Read] refuses; without a namespace a ClusterNetworkPolicy. It denies
// all traffic of the pods that the object selects, in the directions that it names. An unreadable part has the widest
// value. It fails if the names are invalid.
func Closed(namespace, name string, object []byte) (policy.Policy, error) {
	var o struct {
		Spec spec `json:"spec"`
	}
	if document.Decode(object, &o) != nil {
		o.Spec = nil
	}
	p := policy.Policy{Namespace: namespace, Name: name}
	if ingress, egress := o.Spec.has("ingress"), o.Spec.has("egress"); namespace != "" {
		o.Spec.closeNamespaced(&p)
	} else {
		var of subject
		if o.Spec.read("subject", &of) && of.PodSelector != nil {
			p.Subject = *of.PodSelector
		}
		var tier string
		o.Spec.read("tier", &tier)
		p.Tier = tiers[tier] // Admin if the tier is unknown
		if !o.Spec.read("priority", &p.Priority) || p.Priority > 1000 {
			p.Priority = 0
		}
		deny := []policy.Rule{{Name: "it cannot be read", Action: policy.Deny}}
		if ingress || !egress {
			p.Ingress = deny
		}
		if egress || !ingress {
			p.Egress = deny
		}
	}
	if p.Validate() != nil { // its selector may name too many labels
		if p.Subject.Pods = (policy.Selector{}); namespace == "" {
			p.Subject = policy.PodSelector{}
		}
	}
	return p, p.Validate()
}

type spec map[string]jsontext.Value

func (f spec) read(name string, to any) bool {
	return f[name] != nil && document.Decode(f[name], to, json.RejectUnknownMembers(true)) == nil
}

func (f spec) has(name string) bool {
	return !slices.Contains([]string{"", "null", "[]"}, string(f[name]))
}

func (f spec) closeNamespaced(p *policy.Policy) {
	p.Tier, p.Subject.Namespaces = policy.Namespaced, inNamespace(p.Namespace)
	var pods selector
	if f.read("podSelector", &pods) {
		p.Subject.Pods = pods.Selector
	}
	var types []string
	if !f.has("policyTypes") {
		p.IsolatesIngress, p.IsolatesEgress = f != nil, f.has("egress")
	} else if f.read("policyTypes", &types) {
		p.IsolatesIngress, p.IsolatesEgress = slices.Contains(types, "Ingress"), slices.Contains(types, "Egress")
	}
	if !p.IsolatesIngress && !p.IsolatesEgress {
		p.IsolatesIngress, p.IsolatesEgress = true, true
	}
}
