// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TryDevice creates a device of a kind and deletes it. The error matches errors.ErrUnsupported without the kind.
func (c Conn) TryDevice(kind string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "probe-device"
	var link netlink.Link = &netlink.GenericLink{LinkAttrs: attrs, LinkType: kind}
	switch kind {
	case "vxlan":
		link = &netlink.Vxlan{LinkAttrs: attrs, FlowBased: true}
	case "geneve":
		link = &netlink.Geneve{LinkAttrs: attrs, FlowBased: true}
	}
	err := c.with(func(handle *netlink.Handle) error {
		if err := handle.LinkAdd(link); err != nil {
			return err
		}
		return handle.LinkDel(link)
	})
	return c.failed(err, "create a %s device", kind)
}

// TryQdisc adds a queueing discipline of a kind to the loopback device and deletes it. The error matches
// errors.ErrUnsupported if the kernel lacks the kind.
func (c Conn) TryQdisc(kind string) error {
	return c.OnDevice("add a "+kind+" queue to ", "lo", func(handle *netlink.Handle, lo netlink.Link) error {
		attrs := netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Parent: netlink.HANDLE_ROOT,
			Handle: netlink.MakeHandle(1, 0)}
		var qdisc netlink.Qdisc = &netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: kind}
		switch kind {
		case "netem":
			qdisc = netlink.NewNetem(attrs, netlink.NetemQdiscAttrs{})
		case "tbf": // it takes no defaults
			qdisc = &netlink.Tbf{QdiscAttrs: attrs, Rate: 1e6, Limit: 1e6, Buffer: 1e6}
		}
		if err := handle.QdiscAdd(qdisc); err != nil {
			return AsUnsupported(err)
		}
		return handle.QdiscDel(qdisc)
	})
}

// TryGenericFamily looks up a generic netlink family, such as "ovs_datapath" of Open vSwitch. The kernel loads its
// module if it has one. If the family is missing, the error matches errors.ErrUnsupported.
func (c Conn) TryGenericFamily(family string) error {
	handle, err := c.FamilyHandle(unix.NETLINK_GENERIC)
	if err != nil {
		return err
	}
	defer handle.Close()
	if _, err := handle.GenlFamilyGet(family); err != nil {
		return fmt.Errorf("look for %s in generic netlink: %w", family, AsUnsupported(err))
	}
	return nil
}

// AsUnsupported makes ENOENT, the kernel's answer to an unknown name, match errors.ErrUnsupported.
func AsUnsupported(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}

// TryNFTables reads the generation of the nftables rules. The error matches errors.ErrUnsupported if the kernel lacks
// nftables.
func (c Conn) TryNFTables() error {
	return c.askNetfilter("nftables", unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN)
}

// getConntrackStats requests the number of connections (IPCTNL_MSG_CT_GET_STATS of
// linux/netfilter/nfnetlink_conntrack.h).
const getConntrackStats = 5

// TryConntrack reads the number of tracked connections. The error matches errors.ErrUnsupported if the kernel does not
// track any.
func (c Conn) TryConntrack() error {
	return c.askNetfilter("connection tracking", unix.NFNL_SUBSYS_CTNETLINK<<8|getConntrackStats)
}

// askNetfilter sends a question without arguments. The kernel loads the module of the part if it has one.
func (c Conn) askNetfilter(part string, question int) error {
	request := vnl.NewNetlinkRequest(question, unix.NLM_F_ACK)
	request.AddData(&vnl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: vnl.NFNETLINK_V0})
	_, err := c.request(request, unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) { // no such part, or no nfnetlink
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return c.failed(err, "query %s", part)
}
