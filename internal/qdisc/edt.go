// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
)

const (
	// paceMajor is the handle of our fq and the priority of our filter: "mp" in ASCII. The filter runs after filters
	// with lower priorities and before those whose priority the kernel chose.
	paceMajor = 0x6d70
	// fqPackets is the capacity of fq in packets, for all flows and for each. A packet that fq drops has used up rate,
	// so the program must drop first.
	fqPackets = 1 << 16
)

// pace limits what a device sends by departure times: fq is the root qdisc, and a program sets them. The error matches
// errors.ErrUnsupported if the kernel lacks a part; after it nothing is left.
func pace(handle *netlink.Handle, link netlink.Link, limit Limit) error {
	queue := netlink.NewFq(rootAttrs(link, paceMajor))
	queue.PacketLimit, queue.FlowPacketLimit = fqPackets, fqPackets
	// TCP paces its sockets itself, as without fq.
	queue.Pacing = 0
	if err := rtnl.AsUnsupported(handle.QdiscReplace(queue)); err != nil {
		return fmt.Errorf("add fq: %w", err)
	}
	err := attachPacer(handle, link, limit)
	if err != nil {
		err = errors.Join(rtnl.AsUnsupported(err), unpace(handle, link))
	}
	return err
}

// attachPacer attaches the program that sets departure times to a device's egress, behind tcx programs, in place of an
// earlier one. It is a classic tc filter, so it ends with the device.
func attachPacer(handle *netlink.Handle, link netlink.Link, limit Limit) (err error) {
	objects, err := load(edtProgEdt, bucketOf(limit))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, objects.Close()) }()
	if err := handle.QdiscAdd(clsact(link)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact: %w", err)
	}
	if err := handle.FilterReplace(paceFilter(link, objects.Program.FD())); err != nil {
		return fmt.Errorf("add filter: %w", err)
	}
	return nil
}

// unpace removes what pace created.
func unpace(handle *netlink.Handle, link netlink.Link) error {
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
