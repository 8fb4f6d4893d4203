// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"

	"mustang/internal/netns"
	"mustang/internal/nodenet"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

func buildPodToNetwork(ctx context.Context, l *Lab) (err error) {
	h := &host{place: HostB, pod: PodB, addresses: []netip.Prefix{l.Options.Uplink.Host}, podCIDRs: networkPods}
	if h.ns, err = l.addHost(h.place); err != nil {
		return err
	}
	if h.mtu, err = l.addMacvlanUplink(h.ns); err != nil {
		return err
	}
	if err := l.configureHost(h); err != nil {
		return err
	}
	if l.Options.NAT {
		if err := nodenet.Masquerade(h.ns, natTable, h.podCIDRs); err != nil {
			return err
		}
	}
	if err := l.addPodDatapath(ctx); err != nil {
		return err
	}
	return l.Connect()
}

// addMacvlanUplink adds a macvlan on the uplink device to the host and returns its MTU. It answers ARP for its own
// addresses alone: other machines on the network may use the host's other addresses.
func (l *Lab) addMacvlanUplink(host *netns.Namespace) (mtu int, err error) {
	machine, err := netns.Current()
	if err != nil {
		return 0, err
	}
	defer machine.Close()
	device, err := rtnl.In(machine).Device(l.Options.Uplink.Name)
	if err != nil {
		return 0, err
	}
	mode, err := probedMode("macvlan")
	if err != nil {
		return 0, err
	}
	network := podlink.Network{Host: machine, Uplink: device.Name, MTU: device.MTU}
	if _, err := mode.Create(network, podlink.Pod{Namespace: host, IfName: Uplink, LinkOnly: true}); err != nil {
		return 0, fmt.Errorf("create macvlan device on %q: %w", device.Name, err)
	}
	return device.MTU, rtnl.In(host).SetSysctl("net/ipv4/conf/"+Uplink+"/arp_ignore", "1")
}

// Connect connects a lab of topology pod-to-network after a [Lab.Disconnect], and announces its addresses.
func (l *Lab) Connect() error {
	if err := l.setUplinkUp(true); err != nil {
		return err
	}
	uplink := l.Options.Uplink
	err := l.eachDevice(func(conn rtnl.Conn, device rtnl.Device) error {
		for _, addr := range device.Addrs {
			if addr == uplink.Host || addr == uplink.Pod {
				if err := conn.Announce(device.Name, addr.Addr()); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil || l.Options.NAT || !l.Options.traits().Routed {
		return err
	}
	host := rtnl.In(l.namespaces[HostB])
	// Disconnect has removed the proxy neighbor.
	if err := host.AddProxyNeighbor(Uplink, uplink.Pod.Addr()); err != nil {
		return err
	}
	return host.Announce(Uplink, uplink.Pod.Addr())
}

// Disconnect frees the addresses for another lab. [Lab.Connect] restores only the routes to the network itself.
func (l *Lab) Disconnect() error { return l.setUplinkUp(false) }

// setUplinkUp sets all macvlan devices up or down: the uplink and pods next to it. Devices on them follow.
func (l *Lab) setUplinkUp(up bool) error {
	return l.eachDevice(func(conn rtnl.Conn, device rtnl.Device) error {
		if device.Kind != "macvlan" {
			return nil
		}
		return conn.SetUp(device.Name, up)
	})
}

func (l *Lab) eachDevice(do func(rtnl.Conn, rtnl.Device) error) error {
	for _, place := range l.Places() {
		conn := rtnl.In(l.namespaces[place])
		devices, err := conn.Devices()
		if err != nil {
			return err
		}
		for _, device := range devices {
			if err := do(conn, device); err != nil {
				return err
			}
		}
	}
	return nil
}
