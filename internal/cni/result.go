// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/podlink"
)

// result is what a runtime is told of an attachment.
func (a *attachment) result(made podlink.Attachment, given []address, netns string) *types100.Result {
	out := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, DNS: a.config.DNS}
	if made.HostIfName != "" {
		out.Interfaces = append(out.Interfaces, &types100.Interface{
			Name: made.HostIfName, Mac: macText(made.HostMAC), Mtu: a.network.MTU,
		})
	}
	out.Interfaces = append(out.Interfaces, &types100.Interface{
		Name: a.record.Owner.IfName, Mac: macText(made.MAC), Mtu: a.network.MTU, Sandbox: netns,
	})
	inPod := len(out.Interfaces) - 1
	for i, ip := range given {
		config := &types100.IPConfig{Interface: types100.Int(inPod), Address: ipNet(ip.Prefix)}
		if i < len(made.Prefixes) {
			config.Address = ipNet(made.Prefixes[i])
		}
		if ip.Gateway.IsValid() {
			config.Gateway = ip.Gateway.AsSlice()
		}
		out.IPs = append(out.IPs, config)
	}
	out.Routes = toldRoutes(made.Routes)
	return out
}

// macText is a device's MAC address as runtimes are told it: all zeros where it has none,
// as of netkit at layer 3, which is what the kernel says. podman 4 refuses an empty one.
func macText(mac net.HardwareAddr) string {
	if len(mac) == 0 {
		mac = make(net.HardwareAddr, 6)
	}
	return mac.String()
}

// ipNet keeps the address of a prefix, not only its network.
func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
