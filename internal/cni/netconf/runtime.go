// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"mustang/internal/podlink"
	"mustang/internal/service"
)

// Runtime holds the capability arguments of one attachment (key runtimeConfig, CNI's CONVENTIONS.md).
type Runtime struct {
	// IPs are the requested addresses of the pod; empty for any.
	IPs []netip.Addr
	// MAC is the requested MAC address of the pod's device; nil for any.
	MAC net.HardwareAddr
	// Ports are the port mappings.
	Ports []Port
	// Bandwidth limits the traffic that the pod receives (CNI's ingress) and sends (egress).
	Bandwidth podlink.Bandwidth
}

// Port maps a port of the host to a port of the pod.
type Port struct {
	// HostIP is the address of the host; the zero value means all its addresses.
	HostIP netip.Addr
	// HostPort and ContainerPort are the two ports.
	HostPort, ContainerPort uint16
	// Protocol is TCP or UDP.
	Protocol service.Protocol
}

// maxPorts bounds the port mappings of a pod, and maxIPs its requested addresses.
const (
	maxPorts = 65535
	maxIPs   = 256
)

// parseRuntime parses key runtimeConfig. Runtimes pass only the arguments of capabilities that the configuration
// lists, so an unknown key is an error. Aliases are for other plugins.
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
			o.err = Invalidf("runtimeConfig.mac: want a MAC address, got %q", mac)
		}
	}
	o.readEach("portMappings", maxPorts, func(p *object) { out.Ports = append(out.Ports, parsePort(p)) })
	readWith(o, "bandwidth", &out.Bandwidth, parseBandwidth)
	o.ignore("aliases")
	return out, o.finish()
}

// parseIPs parses addresses with or without a prefix length.
func parseIPs(o *object) (out []netip.Addr, err error) {
	var texts []string
	o.read("ips", "an array of addresses", &texts)
	if len(texts) > maxIPs {
		return nil, Invalidf("%s: %d elements, want %d at most", o.key("ips"), len(texts), maxIPs)
	}
	for i, text := range texts {
		addr, err := netip.ParseAddr(text)
		if prefix, perr := netip.ParsePrefix(text); perr == nil {
			addr, err = prefix.Addr(), nil
		}
		if err != nil {
			return nil, Invalidf("%s: want an address, got %q", fmt.Sprintf("%s[%d]", o.key("ips"), i), text)
		}
		out = append(out, addr.Unmap())
	}
	return out, o.err
}

func parsePort(p *object) (out Port) {
	var host string
	protocol := "tcp"
	p.foldCase("hostPort", "containerPort", "protocol", "hostIP")
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
			p.err = Invalidf("%s: want an address, got %q", p.key("hostIP"), host)
			return out
		}
		if out.HostIP = out.HostIP.Unmap(); out.HostIP.IsUnspecified() {
			out.HostIP = netip.Addr{}
		}
	}
	switch out.Protocol, err = service.ParseProtocol(protocol); {
	case err != nil || out.Protocol != service.TCP && out.Protocol != service.UDP:
		p.err = Invalidf("%s: want tcp or udp, got %q", p.key("protocol"), protocol)
	case out.HostPort == 0:
		p.err = Invalidf("%s: missing, or 0", p.key("hostPort"))
	case out.ContainerPort == 0:
		p.err = Invalidf("%s: missing, or 0", p.key("containerPort"))
	}
	return out
}

func parseBandwidth(raw json.RawMessage) (out podlink.Bandwidth, err error) {
	o := parseObject("runtimeConfig.bandwidth", raw)
	if o.err != nil {
		return out, o.err
	}
	o.foldCase("ingressRate", "ingressBurst", "egressRate", "egressBurst")
	const rate, burst = "bits per second", "a number of bits"
	o.read("ingressRate", rate, &out.ToPod.Rate)
	o.read("ingressBurst", burst, &out.ToPod.Burst)
	o.read("egressRate", rate, &out.FromPod.Rate)
	o.read("egressBurst", burst, &out.FromPod.Burst)
	return out, o.finish()
}
