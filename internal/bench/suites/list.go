// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"fmt"
	"slices"
	"strings"

	"mustang/internal/suggest"
)

// Names that stand for suites.
const (
	// Default is the suite that runs if none is named.
	Default = "pod-links"
	// All stands for all suites, one after the other.
	All = "all"
)

// entry is a suite that is built only if it is used: the help lists suites, and some have hundreds of paths.
type entry struct {
	name, doc string
	build     func() Suite
}

func entries() []entry {
	return []entry{
		{"interfaces", "the virtual network interfaces of one host: loopback, veth, bridge, Docker, TUN", interfaces},
		{"latency", "from a pod to another host: the latency that each link adds to the host's own", latency},
		{"overlay", "between pods of two hosts: VXLAN and no overlay, by the kernel and by eBPF", overlay},
		{Default, "two pods of one host: each link mode by pod IP and by cluster IP", podLinks},
		{"pod-links-ipv6", "two pods of one host by IPv6, and what it costs against IPv4", ipv6},
		{"services", "services by eBPF, iptables, nftables and IPVS, among 10 to 100,000 of them", services},
		{"policy", "a network policy of 1 to 10,000 rules by eBPF, iptables and nftables, and none", policy},
		{"two-cpus", "client and server of a path on one CPU and on two, as most users have them", twoCPUs},
		{"switching", "Linux bridge against Open vSwitch: namespaces and VMs, one host and two, plain and VXLAN",
			switching},
		{"docker", "Docker's network modes, compared with the path between two hosts", docker},
		{"cni", "how fast CNI plugins attach and detach a pod, one at a time and 100 at once", cni},
	}
}

// List returns all suites, in the order in which they are listed and run.
func List() []Suite { return list(func(e entry) Suite { return e.build() }) }

// Summaries is [List] with Name and Doc alone.
func Summaries() []Suite { return list(func(entry) Suite { return Suite{} }) }

func list(build func(entry) Suite) (all []Suite) {
	for _, e := range entries() {
		s := build(e)
		s.Name, s.Doc = e.name, e.doc
		all = append(all, s)
	}
	return all
}

// Names returns the names of all suites, and [All].
func Names() (names []string) {
	for _, s := range Summaries() {
		names = append(names, s.Name)
	}
	return append(names, All)
}

// Lookup returns the suites of these names, each once and in the order of List; all of them for [All].
func Lookup(names ...string) ([]Suite, error) {
	known := Names()
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("unknown suite %q (known: %s)%s", name, strings.Join(known, ", "), suggest.Text(name, known))
		}
	}
	return slices.DeleteFunc(List(), func(s Suite) bool {
		return !slices.Contains(names, All) && !slices.Contains(names, s.Name)
	}), nil
}
