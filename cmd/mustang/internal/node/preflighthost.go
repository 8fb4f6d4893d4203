// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/advise"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/netstat"
	"mustang/internal/nodenet"
	"mustang/internal/rtnl"
)

// leastIPv6 is the smallest MTU of a link that carries IPv6 (RFC 8200, section 5).
const leastIPv6 = 1280

// Ports of the manifest's agent, which kube-proxy has too.
const healthzPort, metricsPort = 10256, 10249

func (p *preflight) checkKernel(context.Context) error {
	for _, f := range objects.Features("") {
		detail, err := f.Probe()
		required := isRequired(f.Name) || f.Name == "cgroup2" || f.Name == "socket programs"
		switch {
		case !required:
		case err == nil:
			p.ok(f.Name, "%s", detail)
		case f.Name == "bpffs":
			p.ok(f.Name, "not mounted at %s: the agent mounts it", detail)
		default:
			p.fail(f.Name, f.Needs, "missing, %s: %v", f.Use, err)
		}
	}
	scratch, err := netns.New()
	if err != nil {
		return err
	}
	defer scratch.Close()
	p.have("nf_tables", rtnl.In(scratch).TryNFTables())
	p.have("vxlan", rtnl.In(scratch).TryDevice("vxlan"))
	return nil
}

// checkWireGuard checks what --encrypt=on needs.
func (p *preflight) checkWireGuard(context.Context) error {
	sockets, err := netstat.Receivers(p.host, unix.IPPROTO_UDP, nodenet.WireGuardPort)
	own, ownErr := rtnl.In(p.host).HasDevice(nodenet.WireGuardName)
	switch missing := nodenet.ProbeWireGuard(); {
	case err != nil || ownErr != nil:
		return errors.Join(err, ownErr)
	case len(sockets) > 0 && !own:
		p.warn("WireGuard", "for --encrypt=on: end that program, or --encrypt-port with another port, the same on all nodes",
			"a program has UDP port %d, at %v", nodenet.WireGuardPort, sockets[0].Addr)
	case missing != nil:
		p.found = append(p.found, checkup{"WireGuard", noted, "not in the kernel: only --encrypt=on needs it", ""})
	default:
		p.ok("WireGuard", "UDP port %d is free", nodenet.WireGuardPort)
	}
	return nil
}

func (p *preflight) have(module string, err error) {
	if err != nil {
		p.fail(module, "modprobe "+module, "%v", err)
	} else {
		p.ok(module, "")
	}
}

func (p *preflight) checkPorts(context.Context) error {
	for _, port := range []uint16{healthzPort, metricsPort} {
		name := fmt.Sprint("TCP port ", port)
		sockets, err := netstat.Receivers(p.host, unix.IPPROTO_TCP, port)
		switch {
		case err != nil:
			return err
		case len(sockets) == 0:
			p.ok(name, "free")
		case p.runs:
			p.ok(name, "the agent has it")
		default:
			p.fail(name, "if it is kube-proxy: docs/replace-kube-proxy.md; else another port for the agent",
				"a program listens at %v; kube-proxy uses this port", netip.AddrPortFrom(sockets[0].Addr, port))
		}
	}
	name := fmt.Sprint("UDP port ", p.port)
	tunnels, shared, err := nodenet.TunnelsAt(p.host, p.port)
	if err != nil {
		return err
	}
	sockets, err := netstat.Receivers(p.host, unix.IPPROTO_UDP, p.port)
	own, ownErr := rtnl.In(p.host).HasDevice(nodenet.DeviceName)
	const other = "--vxlan-port with another port, the same on all nodes"
	switch devices := strings.Join(tunnels, ", "); {
	case err != nil || ownErr != nil:
		return errors.Join(err, ownErr)
	case !shared:
		p.fail(name, "delete the device, or "+other, "device %s uses it exclusively", devices)
	case len(tunnels) > 0:
		p.warn(name, "delete the device after its pods are gone", "device %s shares it", devices)
	case len(sockets) > 0 && !own:
		p.fail(name, "end that program (it may be preflight --listen), or "+other, "a program has it, at %v", sockets[0].Addr)
	default:
		p.ok(name, "free for VXLAN")
	}
	return nil
}

func (p *preflight) checkProxy(context.Context) error {
	rules, err := nodenet.ProxyRules(p.host)
	if err != nil && !noNFTables(err) {
		return err
	}
	ipvs, err := rtnl.In(p.host).HasDevice(nodenet.AddressesOfIPVS)
	if ipvs {
		rules = append(rules, "device "+nodenet.AddressesOfIPVS)
	}
	if len(rules) > 0 {
		p.warn("kube-proxy's rules", "after the rollout: kube-proxy --cleanup, or restart the node", "%s",
			strings.Join(rules, ", "))
	} else {
		p.ok("kube-proxy's rules", "none")
	}
	return err
}

func (p *preflight) checkPlugins(context.Context) error {
	before, err := p.place.Before()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.ok("CNI configuration", "%s does not exist", p.place.ConfDir)
	case err != nil:
		return err
	case len(before) > 0:
		p.fail("CNI configuration", "remove them once their plugin is removed",
			"%s in %s come before %s: pods get their network", firstOf(before), p.place.ConfDir, p.place.ConfName)
	default:
		p.ok("CNI configuration", "none before %s", p.place.Conf())
	}
	devices, err := rtnl.In(p.host).Devices()
	var left []string
	for _, d := range devices {
		if advise.IsOther(d.Name) {
			left = append(left, d.Name)
		}
	}
	if len(left) > 0 {
		p.warn("devices of CNI plugins", "ip link delete, once no pod uses them", "%s", firstOf(left))
	} else {
		p.ok("devices of CNI plugins", "none")
	}
	return err
}

func (p *preflight) checkForwarding(context.Context) error {
	chains, err := droppingChains(p.host)
	if len(chains) > 0 {
		p.warn("forwarded packets", acceptPods, "chain %s "+dropsPods, strings.Join(chains, ", "))
	} else {
		p.ok("forwarded packets", "no forward chain has policy drop")
	}
	device, deviceErr := rtnl.In(p.host).DefaultDevice()
	if errors.Is(deviceErr, fs.ErrNotExist) {
		return err
	}
	strict, strictErr := strictFilter(p.host, device)
	if strict {
		p.warn("rp_filter", fmt.Sprintf("sysctl net.ipv4.conf.%s.rp_filter=2, if --link is ipvlan", device),
			"strict at %s: the host drops packets from ipvlan pods", device)
	} else {
		p.ok("rp_filter", "not strict at %s", device)
	}
	return errors.Join(err, deviceErr, strictErr)
}

// checkMTU checks the device of the default route, or else the devices with a global address.
func (p *preflight) checkMTU(context.Context) error {
	devices, err := rtnl.In(p.host).Devices()
	if err != nil {
		return err
	}
	uplink, err := rtnl.In(p.host).DefaultDevice()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	before := len(p.found)
	for _, d := range devices {
		has := func(underlay netip.Addr) bool {
			return slices.ContainsFunc(d.Addrs, func(a netip.Prefix) bool {
				return a.Addr().IsGlobalUnicast() && a.Addr().Is4() == underlay.Is4()
			})
		}
		underlay, ipv6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
		if !has(underlay) && has(ipv6) {
			underlay = ipv6
		}
		overhead := nodenet.Overhead(underlay)
		least := leastIPv6 + overhead
		other := d.Name == nodenet.DeviceName || uplink != "" || !d.Up || !has(underlay)
		switch name := "MTU of " + d.Name; {
		case d.Name != uplink && other:
		case d.MTU >= least && d.MTU < least+10:
			p.warn(name, "a larger MTU, if --encrypt is on", "%d: IPv6 in WireGuard needs %d", d.MTU, least+10)
		case d.MTU >= least:
			p.ok(name, "%d, in VXLAN %d", d.MTU, d.MTU-overhead)
		case p.ipv6 || has(ipv6):
			p.fail(name, "a larger MTU, or --routing=native", "%d: IPv6 in VXLAN needs %d", d.MTU, least)
		default:
			p.warn(name, "a larger MTU, before pods get IPv6 addresses", "%d: IPv6 in VXLAN needs %d", d.MTU, least)
		}
	}
	if len(p.found) == before {
		p.warn("MTU", "configure the node's address first", "no device has an address")
	}
	return nil
}
