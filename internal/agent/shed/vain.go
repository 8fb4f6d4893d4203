// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"errors"
	"strings"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/policy/blame"
)

// vain is a search that has found no room whoever lost what, beside some policies of the cluster, and what was told of it.
type vain struct {
	search  time.Time
	cluster uint64
	why     string
	told    []kube.Warning
}

// holds reports whether a search for the same reason would be in vain again.
func (v *vain) holds(all []policy.Policy, err error) bool {
	return time.Since(v.search) < Hold && v.why == err.Error() && v.cluster == sumOf(ofCluster(all))
}

// giveUp returns what to tell where nothing that was to be taken is, as there is no room all the same.
func (s *Shedder) giveUp(all []policy.Policy, taken []kube.Warning, err error) []kube.Warning {
	for i := range taken {
		taken[i].Text = notInForce + reason(err)
	}
	taken = append(taken, toldOfCluster(all, err)...)
	if isOfRoom(err) {
		s.vain = vain{time.Now(), sumOf(ofCluster(all)), err.Error(), taken}
	}
	return taken
}

const notInForce = "no change of policies is in force on the node: "

// ofCluster returns the ClusterNetworkPolicies.
func ofCluster(all []policy.Policy) (out []policy.Policy) {
	for i := range all {
		if all[i].Tier != policy.Namespaced {
			out = append(out, all[i])
		}
	}
	return out
}

// toldOfCluster says of the ClusterNetworkPolicy that is to blame for an error that no policies are written for it.
func toldOfCluster(all []policy.Policy, err error) []kube.Warning {
	var over *policy.OverlapError
	var work *blame.WorkError
	var none *objects.FullError
	var most policy.Origin
	switch {
	case errors.As(err, &none) && none.Map != policies.Documents:
		bulk := 0
		for i := range all {
			if p := &all[i]; p.Tier != policy.Namespaced && p.Bulk() > bulk {
				bulk, most = p.Bulk(), policy.Origin{Tier: p.Tier, Name: p.Name}
			}
		}
	case errors.As(err, &over):
		most = over.Most
	case errors.As(err, &work):
		most = work.Most
	}
	if most.Name == "" || most.Tier == policy.Namespaced {
		return nil
	}
	return []kube.Warning{{Kind: kube.ClusterNetworkPolicies, Name: most.Name, Reason: "NoRoom", Text: notInForce + reason(err)}}
}

// reason returns the text of an error without the policy that it names, which may be another tenant's.
func reason(err error) string {
	text := err.Error()
	var over *policy.OverlapError
	var work *blame.WorkError
	switch {
	case errors.As(err, &over):
		return strings.TrimPrefix(text, over.Most.String()+": ")
	case errors.As(err, &work):
		return strings.TrimPrefix(text, work.Most.String()+": ")
	}
	return text
}
