// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// pacing describes the EDT limit of a device.
type pacing struct {
	// Program is the id of the program that sets departure times; 0 if there is none.
	Program uint32
	// Queue is whether queue fq, which holds packets until their departure time, is the root qdisc.
	Queue bool
}

const (
	// paceMajor is the handle of our fq and the priority of our filter: "mp" in ASCII. The filter runs after filters
	// with lower priorities and before those whose priority the kernel chose.
	paceMajor = 0x6d70
	// fqPackets is the capacity of fq in packets, for all flows and for each. A packet that fq drops has used up rate,
	// so the program must drop first.
	fqPackets = 1 << 16
)

// attachFQ makes fq the root qdisc of a device. Until attachEDT it sends all packets at once. The error matches
// fs.ErrNotExist if the device does not exist, and errors.ErrUnsupported if the kernel lacks fq. A limit that no packet
// would pass is an error.
func attachFQ(n *netns.Namespace, device string, limit Limit) error {
	return onDevice(n, "add fq to", device, func(handle *netlink.Handle, link netlink.Link) error {
		if _, err := limit.bucket(link); err != nil {
			return err
		}
		queue := netlink.NewFq(netlink.QdiscAttrs{
			LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(paceMajor, 0),
		})
		queue.PacketLimit, queue.FlowPacketLimit = fqPackets, fqPackets
		// TCP paces its sockets itself, as without fq.
		queue.Pacing = 0
		return handle.QdiscReplace(queue)
	})
}

// attachEDT attaches the program that sets departure times to a device's egress, behind tcx programs, in place of an
// earlier one. It is a classic tc filter, so it ends with the device. The error matches errors.ErrUnsupported if the
// kernel lacks clsact or cls_bpf.
func attachEDT(n *netns.Namespace, device string, fd int) error {
	return onDevice(n, "attach an EDT program to", device, func(handle *netlink.Handle, link netlink.Link) error {
		if err := handle.QdiscAdd(clsact(link)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add clsact: %w", err)
		}
		if err := handle.FilterReplace(paceFilter(link, fd)); err != nil {
			return fmt.Errorf("add filter: %w", err)
		}
		return nil
	})
}

// readPacing finds what attachFQ and attachEDT created. The error matches fs.ErrNotExist if the device does not exist.
func readPacing(n *netns.Namespace, device string) (out pacing, err error) {
	err = onDevice(n, "read the EDT limit of", device, func(handle *netlink.Handle, link netlink.Link) error {
		filters, err := rtnl.Dump(func() ([]netlink.Filter, error) { return handle.FilterList(link, netlink.HANDLE_MIN_EGRESS) })
		if err != nil {
			return fmt.Errorf("list filters: %w", err)
		}
		for _, filter := range filters {
			if bpf, ok := filter.(*netlink.BpfFilter); ok && bpf.Priority == paceMajor && bpf.DirectAction {
				out.Program = uint32(bpf.Id)
			}
		}
		queues, err := queuesOf(handle, link)
		if err != nil {
			return err
		}
		for _, queue := range queues {
			fq, ok := queue.(*netlink.Fq)
			out.Queue = out.Queue || ok && fq.Parent == netlink.HANDLE_ROOT && fq.Handle == netlink.MakeHandle(paceMajor, 0) &&
				fq.PacketLimit == fqPackets && fq.FlowPacketLimit == fqPackets
		}
		return nil
	})
	return out, err
}

// detachEDT removes what attachFQ and attachEDT created. The error matches fs.ErrNotExist if the device does not exist.
func detachEDT(n *netns.Namespace, device string) error {
	return onDevice(n, "remove the EDT limit of", device, func(handle *netlink.Handle, link netlink.Link) error {
		if err := gone(handle.FilterDel(paceFilter(link, -1))); err != nil {
			return fmt.Errorf("remove filter: %w", err)
		}
		if err := removeIdle(handle, link); err != nil {
			return fmt.Errorf("remove clsact: %w", err)
		}
		queues, err := queuesOf(handle, link)
		if err != nil {
			return err
		}
		for _, queue := range queues {
			if queue.Type() == "fq" && queue.Attrs().Handle == netlink.MakeHandle(paceMajor, 0) {
				return handle.QdiscDel(queue)
			}
		}
		return nil
	})
}

// clsact is the qdisc that holds ingress and egress filters.
func clsact(link netlink.Link) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}
}

// paceFilter is our egress filter on a device.
func paceFilter(link netlink.Link, fd int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_EGRESS,
			Handle: 1, Priority: paceMajor, Protocol: unix.ETH_P_ALL,
		},
		Fd: fd, Name: "mustang", DirectAction: true,
	}
}

// removeIdle removes a device's clsact if it has no filter.
func removeIdle(handle *netlink.Handle, link netlink.Link) error {
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := rtnl.Dump(func() ([]netlink.Filter, error) { return handle.FilterList(link, parent) })
		if err != nil || len(filters) > 0 {
			return err
		}
	}
	return gone(handle.QdiscDel(clsact(link)))
}

// gone ignores the errors of removing an object that does not exist. EINVAL means no clsact.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
