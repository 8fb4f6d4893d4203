// SPDX-License-Identifier: Apache-2.0

package netpolicy

import (
	"errors"
	"fmt"
	"strings"

	"mustang/internal/datapath"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// missing returns why policies to delete are not there: they have another owner, or their name lacks its namespace.
func missing(d *datapath.Datapath, namespace, name string) error {
	all, err := d.Policies().List()
	if err != nil {
		return err
	}
	full := strings.TrimPrefix(namespace+"/"+name, "/")
	text := fmt.Sprintf("policy %s does not exist", full)
	for _, p := range all {
		switch {
		case p.Namespace == namespace && p.Name == name:
			text = fmt.Sprintf("policy %s is of owner %s, which deletes it", full, p.Owner)
			if p.Owner == service.Agent {
				text = fmt.Sprintf("policy %s is of owner agent: delete it in the cluster, by kubectl delete %s", full, object(p.Policy))
			}
			return errors.New(text)
		case namespace == "" && p.Name == name && p.Owner == service.CLI:
			text += fmt.Sprintf("; NAMESPACE/NAME is the form for a NetworkPolicy, such as %s/%s", p.Namespace, p.Name)
			return errors.New(text)
		}
	}
	return errors.New(text)
}

// object returns a policy as kubectl names it.
func object(p policy.Policy) string {
	if p.Tier == policy.Namespaced {
		return fmt.Sprintf("networkpolicy -n %s %s", p.Namespace, p.Name)
	}
	return "clusternetworkpolicy " + p.Name
}
