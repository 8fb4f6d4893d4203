// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
	"mustang/internal/policy"
)

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
	ingress, egress := o.Spec.has("ingress"), o.Spec.has("egress")
	if namespace != "" {
		o.Spec.closeNamespaced(&p)
	} else {
		var of subject
		if o.Spec.read("subject", &of) && of.PodSelector != nil {
			p.Subject = *of.PodSelector
		}
		var tier string
		o.Spec.read("tier", &tier)
		p.Tier = tiers[tier] // Admin if it is another one
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

// read reads a field as strictly as a policy that is in force, and reports whether it could.
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
