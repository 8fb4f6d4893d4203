// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"mustang/internal/lb"
)

// Runtime is what a runtime asks of one attachment, by the capabilities that the
// configuration lists (CNI's CONVENTIONS.md).
type Runtime struct {
	// IPs are the addresses that the pod is to have; empty for any.
	IPs []netip.Addr
	// MAC is the address that its device is to have; nil for any.
	MAC net.HardwareAddr
	// Ports are the host's ports that lead to the pod's.
	Ports []Port
	// Bandwidth limits the pod.
	Bandwidth Bandwidth
}

// Port is a host's port that leads to one of a pod.
type Port struct {
	// HostIP is the host's address; the zero value stands for all that it has.
	HostIP netip.Addr
	// HostPort and ContainerPort are the two ports.
	HostPort, ContainerPort uint16
	// Protocol is TCP or UDP.
	Protocol lb.Protocol
}

// Bandwidth limits what a pod receives (ingress) and sends (egress): rates in bits
// per second, bursts in bits. A rate of 0 limits nothing.
type Bandwidth struct {
	IngressRate, IngressBurst, EgressRate, EgressBurst uint64
}

// parseRuntime reads key runtimeConfig. Aliases are left to others; so is what this
// plugin has no capability for, since runtimes pass that only to plugins that list
// it.
func parseRuntime(raw json.RawMessage) (out Runtime, err error) {
	o := parseObject("runtimeConfig", raw)
	if o.err != nil {
		return out, o.err
	}
	out.IPs, o.err = parseIPs(o)
	var mac string
	o.read("mac", "a MAC address", &mac)
	if mac != "" && o.err == nil {
		if out.MAC, err = net.ParseMAC(mac); err != nil || len(out.MAC) != 6 {
			o.err = invalid("runtimeConfig.mac: want a MAC address, got %q", mac)
		}
	}
	o.each("portMappings", func(p *object) { out.Ports = append(out.Ports, parsePort(p)) })
	part(o, "bandwidth", &out.Bandwidth, parseBandwidth)
	o.ignore("aliases")
	return out, o.finish()
}

// parseIPs reads addresses, with a prefix length or without.
func parseIPs(o *object) (out []netip.Addr, err error) {
	var texts []string
	o.read("ips", "an array of addresses", &texts)
	for i, text := range texts {
		addr, err := netip.ParseAddr(text)
		if prefix, perr := netip.ParsePrefix(text); perr == nil {
			addr, err = prefix.Addr(), nil
		}
		if err != nil {
			return nil, invalid("%s: want an address, got %q", indexed(o.key("ips"), i), text)
		}
		out = append(out, addr.Unmap())
	}
	return out, o.err
}

func parsePort(p *object) (out Port) {
	var host string
	protocol := "tcp"
	p.fold("hostPort", "containerPort", "protocol", "hostIP")
	p.read("hostPort", "a port", &out.HostPort)
	p.read("containerPort", "a port", &out.ContainerPort)
	p.read("protocol", "tcp or udp", &protocol)
	p.read("hostIP", "an address", &host)
	if p.err != nil {
		return out
	}
	var err error
	if host != "" {
		if out.HostIP, err = netip.ParseAddr(host); err != nil {
			p.err = invalid("%s: want an address, got %q", p.key("hostIP"), host)
			return out
		}
		if out.HostIP = out.HostIP.Unmap(); out.HostIP.IsUnspecified() {
			out.HostIP = netip.Addr{}
		}
	}
	switch out.Protocol, err = lb.ParseProtocol(protocol); {
	case err != nil || out.Protocol == lb.Any:
		p.err = invalid("%s: want tcp or udp, got %q", p.key("protocol"), protocol)
	case out.HostPort == 0:
		p.err = invalid("%s: missing, or 0", p.key("hostPort"))
	case out.ContainerPort == 0:
		p.err = invalid("%s: missing, or 0", p.key("containerPort"))
	}
	return out
}

func parseBandwidth(raw json.RawMessage) (out Bandwidth, err error) {
	o := parseObject("runtimeConfig.bandwidth", raw)
	if o.err != nil {
		return out, o.err
	}
	o.fold("ingressRate", "ingressBurst", "egressRate", "egressBurst")
	const rate, burst = "bits per second", "a number of bits"
	o.read("ingressRate", rate, &out.IngressRate)
	o.read("ingressBurst", burst, &out.IngressBurst)
	o.read("egressRate", rate, &out.EgressRate)
	o.read("egressBurst", burst, &out.EgressBurst)
	return out, o.finish()
}

// indexed names an element of an array.
func indexed(name string, index int) string { return fmt.Sprintf("%s[%d]", name, index) }
