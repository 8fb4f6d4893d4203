// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// line is an event as one line of -o json. No byte of a packet is printed.
type line struct {
	Time    string        `json:"time"` // RFC 3339
	Verdict flows.Verdict `json:"verdict"`
	Reason  string        `json:"reason,omitempty"` // a counter's name without "drop_"
	// Pod is the pod of the device or socket that the program runs at, if known.
	Pod            string `json:"pod,omitempty"`
	Source         string `json:"source,omitempty"`
	SourcePod      string `json:"source_pod,omitempty"`
	Destination    string `json:"destination,omitempty"`
	DestinationPod string `json:"destination_pod,omitempty"`
	Service        string `json:"service,omitempty"`
	Backend        string `json:"backend,omitempty"`
	BackendPod     string `json:"backend_pod,omitempty"`
	Protocol       string `json:"protocol,omitempty"`
	Message        string `json:"message,omitempty"` // of ICMP
	Flags          string `json:"flags,omitempty"`   // of TCP
	EtherType      string `json:"ethertype,omitempty"`
	MAC            string `json:"mac,omitempty"` // the sender's
	Length         int    `json:"length,omitempty"`
	Rule           string `json:"rule,omitempty"`
	Place          string `json:"place,omitempty"`
}

func (l *line) describe(e *flows.Event) {
	l.Time, l.Verdict, l.Reason = e.Time.Format(time.RFC3339Nano), e.Verdict, e.Reason
	l.Source, l.Destination, l.Backend = text(e.Source), text(e.Destination), text(e.Backend)
	l.Length, l.Place = e.Length, e.Place
	switch source, destination := e.Source.Addr().Unmap(), e.Destination.Addr().Unmap(); {
	case e.Rule == 0 || !source.IsValid() || !destination.IsValid() || source.Is4() == destination.Is4():
	// If the families differ, one address only identifies a pod: the packet, as one to a link-local address, lacked it.
	case source.Is4():
		l.Source = ""
	default:
		l.Destination = ""
	}
	if e.MAC != nil {
		l.MAC = e.MAC.String()
	}
	switch {
	case e.IsICMP():
		l.Protocol, l.Message = "icmp", message(e)
	case e.Protocol != 0:
		l.Protocol, l.Flags = e.Protocol.String(), flags(e.Flags)
	case e.EtherType == unix.ETH_P_ARP:
		l.Protocol = "arp"
	case e.EtherType != 0:
		l.EtherType = fmt.Sprintf("0x%04x", e.EtherType)
	}
}

func text(a netip.AddrPort) string {
	switch {
	case !a.IsValid():
		return ""
	case a.Port() == 0:
		return a.Addr().String()
	}
	return a.String()
}

// message names a message of ICMP (RFC 792, RFC 4443).
func message(e *flows.Event) string {
	names := map[uint8]string{8: "echo request", 0: "echo reply"}
	if e.Protocol == unix.IPPROTO_ICMPV6 {
		names = map[uint8]string{128: "echo request", 129: "echo reply"}
	}
	return cmp.Or(names[e.Message], fmt.Sprintf("type %d", e.Message))
}

func flags(bits uint8) string {
	var set []string
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
		if bits>>i&1 != 0 {
			set = append(set, name)
		}
	}
	return strings.Join(set, ",")
}

func (l *line) text(at time.Time) string {
	words := []string{at.Format("15:04:05.000"), string(l.Verdict), l.Reason}
	add := func(when bool, more ...string) {
		if when {
			words = append(words, more...)
		}
	}
	add(l.Pod != "" && l.Pod != l.SourcePod, "at", l.Pod)
	add(true, l.Protocol, l.Message, l.SourcePod, l.Source)
	add(l.Destination+l.DestinationPod != "", ">")
	add(l.Service != "", "service")
	add(true, l.DestinationPod, l.Destination)
	add(l.Backend != "", ">", l.BackendPod, l.Backend)
	add(l.EtherType != "", "ethertype", l.EtherType)
	add(l.MAC != "" && (l.Source == "" || l.Reason == "source_mac" || l.Reason == "neighbour"), "from", l.MAC)
	add(l.Rule != "", "by", l.Rule)
	add(true, l.Flags)
	add(l.Length != 0, fmt.Sprint(l.Length), "bytes")
	return strings.Join(slices.DeleteFunc(words, func(word string) bool { return word == "" }), " ")
}

const current = 2 * time.Second // how long names are good for

type names struct {
	datapath *datapath.Datapath
	read     time.Time // when it was known

	addresses  map[netip.Addr]string
	devices    map[int]string // of the host
	namespaces map[uint64]string
	rules      map[uint32]policy.Origin
	services   map[service.Key]bool // whether a destination is one
}

func (n *names) refresh() error {
	if time.Since(n.read) < current {
		return nil
	}
	endpoints, err := n.datapath.Endpoints().List(context.Background())
	if err != nil {
		return err
	}
	known, err := n.datapath.Policies().Snapshot()
	if err != nil {
		return err
	}
	host, err := n.datapath.Host()
	if err != nil {
		return err
	}
	if n.rules, err = n.datapath.Policies().Rules(); err != nil {
		return err
	}
	n.addresses, n.devices, n.namespaces = map[netip.Addr]string{}, map[int]string{}, map[uint64]string{}
	n.services = map[service.Key]bool{}
	for _, p := range known.Pods {
		for _, a := range p.Addresses {
			if !p.HostNetwork {
				n.addresses[a.Unmap()] = cli.Printable(p.Namespace + "/" + p.Name)
			}
		}
	}
	if host != 0 {
		n.namespaces[host] = "host"
	}
	for _, e := range endpoints {
		name := n.addresses[e.IP]
		if e.Host {
			n.devices[e.IfIndex] = name
		}
		if cookie := e.Namespace(); cookie != 0 && cookie != host {
			n.namespaces[cookie] = name
		}
	}
	n.read = time.Now()
	return nil
}

func (n *names) line(e *flows.Event) (l line, err error) {
	if err := n.refresh(); err != nil {
		return l, err
	}
	l.describe(e)
	l.SourcePod, l.DestinationPod = n.addresses[e.Source.Addr()], n.addresses[e.Destination.Addr()]
	l.BackendPod, l.Pod = n.addresses[e.Backend.Addr()], n.namespaces[e.Namespace]
	if e.OnLink {
		l.Pod = n.devices[e.Device]
	}
	if l.Pod == "" && e.Device == 0 { // of a connection, whichever program has made it
		l.Pod = l.SourcePod
	}
	key, is := service.Key{Frontend: e.Destination, Protocol: e.Protocol}, e.Service
	protocols := []service.Protocol{service.TCP, service.UDP, service.SCTP}
	if !is && key.Frontend.Port() != 0 && slices.Contains(protocols, key.Protocol) {
		known := false
		if is, known = n.services[key]; !known {
			if is, err = n.datapath.Services().Has(key); err != nil {
				return l, err
			}
			n.services[key] = is
		}
	}
	if is {
		l.Service = key.String()
	}
	if e.Rule != 0 {
		if _, known := n.rules[e.Rule]; !known { // policies have changed
			if n.rules, err = n.datapath.Policies().Rules(); err != nil {
				return l, err
			}
		}
		l.Rule = cli.Printable(n.rules[e.Rule].String())
	}
	return l, nil
}
