// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// newMAC returns a random locally administered address. One that is set
// explicitly is never changed by udev or, on a bridge, by the kernel.
func newMAC() (net.HardwareAddr, error) {
	mac := make(net.HardwareAddr, 6)
	if _, err := unix.Getrandom(mac, 0); err != nil { // crypto/rand maps memory first
		return nil, fmt.Errorf("choose a MAC address: %w", err)
	}
	mac[0] = mac[0]&^1 | 2
	return mac, nil
}

// macOf reads a device's address as the kernel has it.
func macOf(link netlink.Link) net.HardwareAddr { return link.Attrs().HardwareAddr }

// mac is the address for the pod's device: the one that it is to have, or a new
// one.
func (p Pod) mac() (net.HardwareAddr, error) {
	if p.MAC != nil {
		return p.MAC, nil
	}
	return newMAC()
}

// validateMAC reports what is wrong with the pod's MAC address, if it is given.
func (p Pod) validateMAC() error {
	switch {
	case p.MAC == nil:
		return nil
	case len(p.MAC) != 6:
		return fmt.Errorf("the pod's MAC address %q has %d bytes, not 6", p.MAC, len(p.MAC))
	case p.MAC[0]&1 != 0:
		return fmt.Errorf("the pod's MAC address %v is a multicast address", p.MAC)
	case !slices.ContainsFunc(p.MAC, func(b byte) bool { return b != 0 }):
		return fmt.Errorf("the pod's MAC address %v is all zero", p.MAC)
	case p.Namespace == nil:
		return fmt.Errorf("the pod's MAC address %v can't be set: the pod has no namespace", p.MAC)
	}
	return nil
}

// hasNoMAC is an error if the pod is to have a MAC address of its own, which a
// mode can't give it.
func (p Pod) hasNoMAC(mode string) error {
	if p.MAC == nil {
		return nil
	}
	return fmt.Errorf("link mode %s can't give the pod the MAC address %v: its devices have none of their own", mode, p.MAC)
}
