// SPDX-License-Identifier: Apache-2.0

package netpolicy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
)

// remark says that policies of the command line are only audited, and warns of those that select no pod of this node, and of ports that no
// pod names.
func (c commands) remark(s policy.Snapshot, said policies.Set) error {
	if said.Audit {
		if _, err := fmt.Fprintln(c.Stdout, auditedOnly); err != nil {
			return err
		}
	}
	s.Policies = said.Policies
	var idle, unnamed []string
	for i, n := range s.Selected() {
		p := &s.Policies[i]
		if n == 0 {
			idle = append(idle, p.String())
		}
		for _, name := range p.MissingPorts(s.Pods) {
			unnamed = append(unnamed, fmt.Sprintf("%s (port %q)", p, name))
		}
	}
	c.warn("no pod of this node is selected by ", idle, "")
	c.warn("no pod has the named port of ", unnamed, ": Pod objects in the file name ports")
	return nil
}

// warn writes a line to stderr that names some of a list, and what to do, unless the list is empty.
func (c commands) warn(of string, list []string, do string) {
	const some = 3
	if len(list) == 0 {
		return
	}
	names := strings.Join(list[:min(some, len(list))], ", ")
	if more := len(list) - some; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	fmt.Fprintf(c.Stderr, "mustang: %s%s%s\n", of, names, do)
}

// would returns what is known of pods and namespaces once the command line has said something. An agent knows better.
func would(now known, want policies.Set) policy.Snapshot {
	s := policy.Snapshot{Node: now.Node, Namespaces: slices.Concat(want.Namespaces, now.Namespaces)}
	if !now.cluster {
		s.Namespaces = want.Namespaces
	}
	named, at := map[[2]string]*policy.Pod{}, map[netip.Addr]*policy.Pod{}
	for i := range want.Pods {
		p := &want.Pods[i]
		if !p.HostNetwork && !now.cluster {
			named[[2]string{p.Namespace, p.Name}] = p
			for _, a := range p.Addresses {
				at[a.Unmap()] = p
			}
		}
	}
	for _, p := range now.Pods {
		here := !p.HostNetwork && p.Node == now.Node
		if !here && !now.cluster {
			continue // the files have those
		}
		of := named[[2]string{p.Namespace, p.Name}]
		if of == nil && strings.HasPrefix(p.Name, "endpoint-") { // nobody has named it
			for _, a := range p.Addresses {
				if at[a.Unmap()] != nil {
					of = at[a.Unmap()]
				}
			}
		}
		if of != nil && here {
			p.Namespace, p.Name, p.Labels, p.Ports = of.Namespace, of.Name, of.Labels, of.Ports
		}
		s.Pods = append(s.Pods, p)
	}
	for _, p := range want.Pods {
		p.Node = "elsewhere than " + now.Node // those that are here are endpoints
		s.Pods = append(s.Pods, p)
	}
	return s
}
