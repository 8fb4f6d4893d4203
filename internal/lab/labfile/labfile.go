// SPDX-License-Identifier: Apache-2.0

// Package labfile reads files that describe a lab: hosts with pods, wires between hosts, services. It gives each place
// its addresses and each host its routes, and changes nothing. docs/labs.md has the form and the plan of addresses.
package labfile

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"mustang/internal/service"
)

// Datapaths of a host.
const (
	Kernel = "kernel"
	EBPF   = "ebpf"
)

// ServiceSuffix ends the names of services. Names of places lack a dot.
const ServiceSuffix = ".service"

// Lab is a lab as a file describes it, with all addresses and routes.
type Lab struct {
	Name     string    `json:"name"`
	Hosts    []Host    `json:"hosts"` // in the order of the file
	Wires    []Wire    `json:"wires"`
	Services []Service `json:"services"`
}

// Host is a host with its pods.
type Host struct {
	Name     string `json:"name"`
	Datapath string `json:"datapath"` // [Kernel] or [EBPF]
	// Via is the implementation of services: ebpf-tc with the datapath eBPF; iptables, nftables or ipvs with the kernel's;
	// empty without one.
	Via string `json:"via,omitempty"`
	// Addresses are the host's own: the gateways of the first network, or without pods the plan's.
	Addresses []netip.Addr `json:"addresses"`
	Networks  []Network    `json:"networks"`
	Routes    []Route      `json:"routes"` // to the networks of other hosts, if wires lead there
}

// Network is the network of the pods of one link mode on one host.
type Network struct {
	Link string `json:"link"`
	// Gateways are the host's addresses in it, IPv4 first, with the prefix of the network.
	Gateways []netip.Prefix `json:"gateways"`
	Pods     []Pod          `json:"pods"`
}

// Pod is a pod of a network.
type Pod struct {
	Name       string       `json:"name"`
	HostIfName string       `json:"host_ifname"` // the name of the host's device, where the link has one
	Addresses  []netip.Addr `json:"addresses"`   // IPv4 first
}

// Route is a route by a neighbour.
type Route struct {
	To  netip.Prefix `json:"to"`
	Via netip.Addr   `json:"via"`
}

// Wire joins two hosts.
type Wire struct {
	Device string `json:"device"` // the name of both ends
	Ends   [2]End `json:"ends"`
	// Rate is in bits per second, and Delay in each direction; 0 means no limit.
	Rate  uint64        `json:"rate,omitempty"`
	Delay time.Duration `json:"delay,omitempty"`
}

// End is the end of a wire.
type End struct {
	Host      string         `json:"host"`
	Addresses []netip.Prefix `json:"addresses"` // IPv4 first
}

// Service is a service in front of pods.
type Service struct {
	Name      string           `json:"name"`
	Hosts     []string         `json:"hosts"` // that translate it
	Addresses []netip.AddrPort `json:"addresses"`
	Protocol  string           `json:"protocol,omitempty"` // tcp or udp; empty means both
	Backends  []Backend        `json:"backends"`
}

// Backend is a port of a pod.
type Backend struct {
	Pod  string `json:"pod"`
	Port uint16 `json:"port"`
}

// Places returns the names of the hosts, then the names of the pods by host and network.
func (l *Lab) Places() []string {
	var hosts, pods []string
	for _, h := range l.Hosts {
		hosts = append(hosts, h.Name)
		for _, p := range h.Pods() {
			pods = append(pods, p.Name)
		}
	}
	return append(hosts, pods...)
}

// HostOf returns the host of a place: the place itself, or the host of a pod; nil if the lab lacks the place.
func (l *Lab) HostOf(place string) *Host {
	for i, h := range l.Hosts {
		if h.Name == place || slices.ContainsFunc(h.Pods(), func(p Pod) bool { return p.Name == place }) {
			return &l.Hosts[i]
		}
	}
	return nil
}

// Pods returns the pods of all networks of a host.
func (h Host) Pods() (pods []Pod) {
	for _, n := range h.Networks {
		pods = append(pods, n.Pods...)
	}
	return pods
}

// ServiceNames returns the names of the services, with [ServiceSuffix].
func (l *Lab) ServiceNames() (names []string) {
	for _, s := range l.Services {
		names = append(names, s.Name+ServiceSuffix)
	}
	return names
}

// Addresses returns the addresses of a place or of one of ServiceNames, IPv4 first; none for an unknown name.
func (l *Lab) Addresses(name string) []netip.Addr {
	for _, s := range l.Services {
		if s.Name+ServiceSuffix == name {
			var addrs []netip.Addr
			for _, at := range s.Addresses {
				addrs = append(addrs, at.Addr())
			}
			slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
			return slices.Compact(addrs)
		}
	}
	for _, h := range l.Hosts {
		if h.Name == name {
			return h.Addresses
		}
		for _, p := range h.Pods() {
			if p.Name == name {
				return p.Addresses
			}
		}
	}
	return nil
}

// Translated returns the services that a host translates.
func (l *Lab) Translated(host string) (out []service.Service) {
	for _, s := range l.Services {
		if slices.Contains(s.Hosts, host) {
			out = append(out, l.resolve(s)...)
		}
	}
	return out
}

func (l *Lab) resolve(s Service) []service.Service {
	protocol := service.Any
	if s.Protocol != "" {
		protocol, _ = service.ParseProtocol(s.Protocol) // which was checked
	}
	var out []service.Service
	for _, at := range s.Addresses {
		var backends []netip.AddrPort
		for _, b := range s.Backends {
			for _, addr := range l.Addresses(b.Pod) {
				if addr.Is4() == at.Addr().Is4() {
					backends = append(backends, netip.AddrPortFrom(addr, b.Port))
				}
			}
		}
		out = append(out, service.Service{Frontend: at, Protocol: protocol, Backends: service.Backends(backends...)})
	}
	return out
}

// Trial is how to try a service of a lab by hand.
type Trial struct {
	Server  Backend
	Client  string // a pod that reaches it
	Service string // its name
	Port    uint16
}

// Trial returns how to try the first service from a pod other than its first backend; not ok: impossible.
func (l *Lab) Trial() (t Trial, ok bool) {
	if len(l.Services) == 0 {
		return t, false
	}
	s := l.Services[0]
	t = Trial{Server: s.Backends[0], Service: s.Name + ServiceSuffix, Port: s.Addresses[0].Port()}
	for _, name := range s.Hosts {
		for _, p := range l.HostOf(name).Pods() {
			if t.Client == "" || t.Client == t.Server.Pod {
				t.Client = p.Name
			}
		}
	}
	return t, t.Client != ""
}

// deviceOf names the host's device of a pod in at most 15 bytes; a number may replace a long name.
func deviceOf(pod string, number int) string {
	const prefix, most = "veth-", 15
	if len(prefix)+len(pod) <= most {
		return prefix + pod
	}
	return fmt.Sprintf("veth_%d", number) // no pod's name has that sign
}
