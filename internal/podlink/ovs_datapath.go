// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

const (
	// OVSKernel is the kernel's datapath of Open vSwitch (module openvswitch), by the
	// name that Open vSwitch has for it.
	OVSKernel = "system"
	// OVSUserSpace is the datapath inside of ovs-vswitchd, which reads and writes
	// each packet by packet sockets and TAP devices. It is many times slower.
	OVSUserSpace = "netdev"
)

// ovsFamily is the generic netlink family of the kernel's datapath.
const ovsFamily = "ovs_datapath"

// OVSDatapath returns which datapath the bridge of a network has, once it is set
// up by a mode of Open vSwitch: OVSKernel or OVSUserSpace.
func OVSDatapath(network Network) (_ string, err error) {
	defer wrap(&err, "read the datapath of Open vSwitch")
	s, err := openSwitch(network)
	if err != nil {
		return "", err
	}
	defer s.close()
	bridge, err := s.bridge(network.bridge())
	if err != nil {
		return "", err
	}
	return bridge.datapath(), nil
}

// datapath is the bridge's; the kernel's is the default.
func (b ovsBridge) datapath() string {
	if b.DatapathType == "" {
		return OVSKernel
	}
	return b.DatapathType
}

// internalKind is what the kernel calls a device that Open vSwitch makes: a
// bridge's own, or an internal port.
func (b ovsBridge) internalKind() string {
	if b.datapath() == OVSUserSpace {
		return "tun"
	}
	return "openvswitch"
}

// bestDatapath is the kernel's if both the kernel and ovs-vswitchd have it,
// otherwise that in user space. It is an error if that can't work either.
func (s ovsSwitch) bestDatapath(host *nl.Namespace) (string, error) {
	var rows []struct {
		Types ovsdbSet `json:"datapath_types"`
	}
	if err := s.find(ovsdbName, &rows); err != nil {
		return "", err
	}
	if len(rows) != 1 {
		return "", errors.New("the database of Open vSwitch is not initialised")
	}
	if slices.Contains(rows[0].Types, OVSKernel) && hasKernelDatapath(host) {
		return OVSKernel, nil
	}
	return OVSUserSpace, hasTAP()
}

// hasTAP is nil if ovs-vswitchd can make the devices that its datapath needs.
func hasTAP() error {
	const file = "/dev/net/tun"
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the user-space datapath of Open vSwitch needs TAP devices (module tun): open %s: %w", file, err)
	}
	return unix.Close(fd)
}

// hasKernelDatapath reports whether the kernel has the datapath. Asking for it
// loads its module.
func hasKernelDatapath(ns *nl.Namespace) bool {
	err := ns.Do(func() error {
		handle, err := netlink.NewHandle(unix.NETLINK_GENERIC)
		if err != nil {
			return err
		}
		defer handle.Close()
		_, err = handle.GenlFamilyGet(ovsFamily)
		return err
	})
	return err == nil
}
