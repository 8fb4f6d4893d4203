// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// minMTU and minMTU6 are the least that IPv4 (RFC 791) and IPv6 (RFC 8200) work
// with, maxMTU the most that the IPv4 length field allows.
const (
	minMTU  = 68
	minMTU6 = 1280
	maxMTU  = 65535
)

// validateHost reports that there is no host to work on.
func (n Network) validateHost() error {
	if n.Host == nil {
		return errors.New("the network has no host namespace")
	}
	return nil
}

// validate reports what is wrong with the network for any mode.
func (n Network) validate() error {
	if err := n.validateHost(); err != nil {
		return err
	}
	if mtu := n.mtu(); mtu < minMTU || mtu > maxMTU {
		return fmt.Errorf("MTU %d is not between %d and %d", mtu, minMTU, maxMTU)
	}
	var v4, v6 bool
	for _, gateway := range n.Gateways {
		if !gateway.IsValid() || !isHostAddress(gateway.Addr()) {
			return fmt.Errorf("gateway %v is not the address of a host with its prefix", gateway)
		}
		seen := &v6
		if gateway.Addr().Is4() {
			seen = &v4
		}
		if *seen {
			return fmt.Errorf("gateway %v is the second one of its family", gateway)
		}
		*seen = true
		if err := n.carries(gateway.Addr()); err != nil {
			return err
		}
	}
	return n.validateRouters()
}

// validateSwitched reports what is wrong with a network whose pods are on a
// bridge.
func (n Network) validateSwitched() error {
	if err := n.validate(); err != nil {
		return err
	}
	if err := validateName(n.bridge()); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if n.Trunk != "" {
		if err := validateName(n.Trunk); err != nil {
			return fmt.Errorf("trunk: %w", err)
		}
	}
	if err := n.VXLAN.validate(); err != nil {
		return err
	}
	if n.Trunk != "" || n.VXLAN.on() {
		return nil
	}
	return n.validateGateways()
}

// validateGateways reports that there are none, for modes that need them.
func (n Network) validateGateways() error {
	if len(n.Gateways) == 0 {
		return errors.New("the network has no gateways")
	}
	return nil
}

// carries reports whether the MTU allows for an address of addr's family. The
// kernel drops IPv6 from devices where it does not.
func (n Network) carries(addr netip.Addr) error {
	if addr.Is6() && n.mtu() < minMTU6 {
		return fmt.Errorf("MTU %d is less than the %d that address %v needs", n.mtu(), minMTU6, addr)
	}
	return nil
}

// validate reports what is wrong with the pod for any mode. The namespaces are
// only compared, not changed.
func (p Pod) validate(network Network) error {
	if err := network.validate(); err != nil {
		return err
	}
	if err := p.validateInside(network); err != nil {
		return err
	}
	return p.validateAddresses(network)
}

// validateInside reports what is wrong with the place of the pod's device.
func (p Pod) validateInside(network Network) error {
	if p.Namespace == nil {
		return errors.New("the pod has no namespace")
	}
	pod, err := p.Namespace.Inode()
	if err != nil {
		return err
	}
	host, err := network.Host.Inode()
	if err != nil {
		return err
	}
	if pod == host {
		return fmt.Errorf("namespace %q is the pod's and the host's at once", p.Namespace.Name())
	}
	return p.validateIfName()
}

// validateIfName reports what is wrong with the name of the pod's device.
func (p Pod) validateIfName() error {
	if err := validateName(p.IfName); err != nil {
		return fmt.Errorf("pod's interface: %w", err)
	}
	return nil
}

func (p Pod) validateAddresses(network Network) error {
	if err := p.validateMAC(); err != nil {
		return err
	}
	if len(p.Addresses) == 0 {
		return errors.New("the pod has no addresses")
	}
	seen := map[netip.Addr]bool{}
	for _, addr := range p.Addresses {
		if !isHostAddress(addr) {
			return fmt.Errorf("%v is not an address for a pod", addr)
		}
		if err := network.carries(addr); err != nil {
			return err
		}
		if seen[addr] {
			return fmt.Errorf("pod's address %v is there twice", addr)
		}
		seen[addr] = true
		if gateway, ok := network.gateway(addr); ok && gateway.Addr() == addr {
			return fmt.Errorf("pod's address %v is the gateway's", addr)
		}
		if slices.Contains(network.Routers, addr) {
			return fmt.Errorf("pod's address %v is a router's", addr)
		}
	}
	return nil
}

// validateEnds reports what is wrong with a pod whose link has an end on the host,
// before anything is changed.
func (p Pod) validateEnds(network Network) error {
	if err := p.validate(network); err != nil {
		return err
	}
	return p.validateHostIfName()
}

// validateHostIfName reports what is wrong with the name of the host's end.
func (p Pod) validateHostIfName() error {
	if err := validateName(p.HostIfName); err != nil {
		return fmt.Errorf("host's interface: %w", err)
	}
	return nil
}

// validateDelete reports what keeps one from finding what a pod has on the host.
func (p Pod) validateDelete(network Network) error {
	if err := network.validateHost(); err != nil {
		return err
	}
	return p.validateHostIfName()
}

// alone returns the pod's addresses, each as a prefix of its own.
func (p Pod) alone() []netip.Prefix {
	var out []netip.Prefix
	for _, addr := range p.Addresses {
		out = append(out, single(addr))
	}
	return out
}

// onGateways adds to a configuration the pod's addresses with the prefix length of
// their gateways, its next hops and routes. It is an error if an address is in no
// gateway's prefix.
func (i interior) onGateways(network Network, pod Pod) (interior, error) {
	for _, addr := range pod.Addresses {
		gateway, ok := network.gateway(addr)
		if !ok {
			return interior{}, noGateway(addr)
		}
		if !gateway.Contains(addr) {
			return interior{}, fmt.Errorf("pod's address %v is not in the prefix of gateway %v", addr, gateway)
		}
		i.addrs = append(i.addrs, netip.PrefixFrom(addr, gateway.Bits()))
		if hop := network.hop(gateway); !slices.Contains(i.hops, hop) {
			i.hops = append(i.hops, hop)
		}
	}
	return i.withRoutes(network, pod, true), pod.ValidateRoutes(network, true)
}

func noGateway(addr netip.Addr) error {
	return fmt.Errorf("no gateway of the family of the pod's address %v", addr)
}

// isHostAddress reports whether addr can be that of one host on a network.
func isHostAddress(addr netip.Addr) bool {
	return addr.IsValid() && addr.Zone() == "" && !addr.Is4In6() && !addr.IsUnspecified() &&
		!addr.IsMulticast() && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() &&
		addr != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// validateName applies the kernel's rules for names of devices
// (dev_valid_name), and refuses "%", which the kernel would fill in.
func validateName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) >= unix.IFNAMSIZ:
		return fmt.Errorf("the name %q has more than %d bytes", name, unix.IFNAMSIZ-1)
	case name == "." || name == ".." || name == "all" || name == "default" || name == "lo",
		strings.ContainsAny(name, "/:% \t\n\v\f\r\x00"):
		return fmt.Errorf("the name %q is not valid", name)
	}
	return nil
}
