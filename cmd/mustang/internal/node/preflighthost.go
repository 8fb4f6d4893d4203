// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

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

// foreignDevices are devices of other CNI plugins.
var foreignDevices = []string{"cni0", "flannel*", "cilium_*", "vxlan.calico", "cali*", "weave", "kube-bridge"}

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
			p.fail(name, "kubectl -n kube-system delete daemonset/kube-proxy, or other ports for the agent",
				"a socket listens at %v: kube-proxy has this port", sockets[0].Addr)
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
		p.fail(name, "delete the device, or "+other, "device %s has it, and does not share it", devices)
	case len(tunnels) > 0:
		p.warn(name, "delete the device after its pods are gone", "device %s has it too", devices)
	case len(sockets) > 0 && !own:
		p.fail(name, "end that program (it may be preflight --listen), or "+other, "a socket has it, at %v", sockets[0].Addr)
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
		p.ok("kube-proxy's rules", "none in nftables, nor IPVS")
	}
	return err
}

func (p *preflight) checkPlugins(context.Context) error {
	before, err := p.place.Before()
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case len(before) > 0:
		p.fail("CNI configuration", "remove them once their plugin is removed",
			"pods get another network: in %s, %s sorts before %s", p.place.ConfDir, strings.Join(before, ", "),
			p.place.ConfName)
	default:
		p.ok("CNI configuration", "none before %s", p.place.Conf())
	}
	devices, err := rtnl.In(p.host).Devices()
	var left []string
	for _, d := range devices {
		if slices.ContainsFunc(foreignDevices, func(pattern string) bool {
			matches, _ := path.Match(pattern, d.Name)
			return matches
		}) {
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
		p.warn("forwarded packets", "accept packets from and to pods in it",
			"chain %s drops what no rule accepts: packets of pods that pass the host's stack, too", strings.Join(chains, ", "))
	} else {
		p.ok("forwarded packets", "no chain of nftables drops them all")
	}
	device, deviceErr := rtnl.In(p.host).DefaultDevice()
	if errors.Is(deviceErr, fs.ErrNotExist) {
		return err
	}
	strict, strictErr := strictFilter(p.host, device)
	if strict {
		p.warn("rp_filter", fmt.Sprintf("sysctl net.ipv4.conf.%s.rp_filter=2, if --link is ipvlan", device),
			"rp_filter of %s is strict: the host drops packets of ipvlan pods that pass it", device)
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
	least := leastIPv6 + nodenet.Overhead(netip.IPv4Unspecified())
	for _, d := range devices {
		global := func(a netip.Prefix) bool { return a.Addr().IsGlobalUnicast() }
		global6 := func(a netip.Prefix) bool { return a.Addr().Is6() && global(a) }
		other := d.Name == nodenet.DeviceName || uplink != "" || !d.Up || !slices.ContainsFunc(d.Addrs, global)
		switch name := "MTU of " + d.Name; {
		case d.Name != uplink && other:
		case d.MTU >= least:
			p.ok(name, "%d, in VXLAN %d", d.MTU, d.MTU-nodenet.Overhead(netip.IPv4Unspecified()))
		case p.ipv6 || slices.ContainsFunc(d.Addrs, global6):
			p.fail(name, "a larger MTU, or --routing=native", "%d: IPv6 in VXLAN needs %d", d.MTU, least)
		default:
			p.warn(name, "a larger MTU, before pods get IPv6 addresses", "%d: IPv6 in VXLAN needs %d", d.MTU, least)
		}
	}
	return nil
}
