// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/datapath"
	"mustang/internal/netns"
	"mustang/internal/nodenet"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// Host attaches programs for this node's own processes, and at the devices of the uplinks to outside clients.
type Host struct {
	Datapath  *datapath.Datapath
	Namespace *netns.Namespace
	Cgroup    string   // the directory of the control group whose processes are served; empty: none
	Uplinks   []string // the names of devices; nil: the devices with an address of the node
	// Ranges enables node ports only at the node's addresses in these ranges, Primary only at the addresses of its Node
	// object; neither: at all addresses.
	Ranges  []netip.Prefix
	Primary bool
	// Forward enables forwarding in the families of the node's addresses; nil leaves that to other programs.
	Forward func(addresses []netip.Addr) error
}

// NodePorts returns the addresses with node ports.
func (h Host) NodePorts(addresses []netip.Addr) ([]netip.Addr, error) {
	ports := []netip.Addr{}
	switch {
	case h.Primary:
		return append(ports, addresses...), nil
	case len(h.Ranges) == 0:
		return nil, nil
	}
	on, err := rtnl.In(h.Namespace).Addresses()
	for _, a := range on {
		if slices.ContainsFunc(h.Ranges, func(p netip.Prefix) bool { return p.Contains(a.Addr) }) &&
			!slices.Contains(ports, a.Addr) {
			ports = append(ports, a.Addr)
		}
	}
	return ports, err
}

// AbsentError means that no device has an address of the node's object.
type AbsentError struct{ Addresses []netip.Addr }

func (e *AbsentError) Error() string {
	return fmt.Sprintf("no device has an address of the node: %s", e.Addresses)
}

// Attach attaches the programs of uplinks and of the node's processes, with the addresses of the Node object. It also
// attaches the source guard to host devices made after pods on the same parent, and enables forwarding. Attached
// programs stay. An error may be an *[AbsentError].
func (h Host) Attach(ctx context.Context, addresses []netip.Addr) error {
	_, err := h.Datapath.GuardParents(ctx)
	if h.Forward != nil {
		err = errors.Join(err, h.Forward(addresses))
	}
	return errors.Join(h.attachProcesses(ctx), h.attachUplinks(ctx, addresses), err)
}

func (h Host) attachProcesses(ctx context.Context) error {
	if h.Cgroup == "" {
		return nil
	}
	sockets := h.Datapath.Sockets()
	if _, err := sockets.Attach(ctx, h.Cgroup); err != nil {
		return err
	}
	_, err := sockets.Put(ctx, service.Agent, h.Namespace, datapath.HostScope)
	return err
}

// attachUplinks also attaches a tunnel to other nodes: traffic from outside clients to pods there enters it.
func (h Host) attachUplinks(ctx context.Context, addresses []netip.Addr) error {
	names := h.Uplinks
	if names == nil && len(addresses) > 0 { // the kubelet has reported them
		devices, err := rtnl.In(h.Namespace).Devices()
		if err != nil {
			return err
		}
		for _, d := range devices {
			if slices.ContainsFunc(d.Addrs, func(p netip.Prefix) bool { return slices.Contains(addresses, p.Addr()) }) {
				names = append(names, d.Name)
			}
		}
		if len(names) == 0 {
			return &AbsentError{addresses}
		}
	}
	if len(names) == 0 {
		return nil
	}
	tunnel, all := rtnl.In(h.Namespace).HasDevice(nodenet.DeviceName)
	if tunnel {
		names = append(slices.Clip(names), nodenet.DeviceName)
	}
	for _, name := range names {
		_, err := h.Datapath.Uplinks().Put(ctx, h.Namespace, name)
		if err != nil && h.Uplinks != nil {
			err = fmt.Errorf("--uplink %s: %w", name, err)
		}
		all = errors.Join(all, err)
	}
	return all
}
