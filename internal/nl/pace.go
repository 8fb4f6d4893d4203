// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Pacing is what has a device send each packet when it is due.
type Pacing struct {
	// Program is the kernel's number of the program that says when that is; 0 if there
	// is none.
	Program uint32
	// Queue is whether there is the queue that lets none go before.
	Queue bool
}

const (
	// paceMajor is the handle of our queue and the priority of our filter, by which they
	// are told from others': "mp" in ASCII. The filter comes after those of low numbers,
	// and before those whose number the kernel chose.
	paceMajor = 0x6d70
	// PacePackets is how many packets the queue has room for, of all flows or of one:
	// what it drops has taken its share of the rate, so the program must drop first.
	PacePackets = 1 << 16
)

// PaceQueue gives a device the queue that sends packets when they are due (fq), in
// the place of its own. Until PaceProgram they all are, at once. The error matches
// fs.ErrNotExist if there is no such device, and errors.ErrUnsupported if the kernel
// has no fq. It is an error if the limit, which is the program's to keep, would let
// nothing pass.
func (n *Namespace) PaceQueue(device string, limit RateLimit) error {
	return n.onDevice("give queue fq to", device, func(handle *netlink.Handle, link netlink.Link) error {
		if _, err := limit.bucket(link); err != nil {
			return err
		}
		queue := netlink.NewFq(netlink.QdiscAttrs{
			LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(paceMajor, 0),
		})
		queue.PacketLimit, queue.FlowPacketLimit = PacePackets, PacePackets
		// Sockets that want to send slowly see to that themselves, as without fq.
		queue.Pacing = 0
		return handle.QdiscReplace(queue)
	})
}

// PaceProgram has a program see what a device sends, behind those that sit there by
// tcx, and say when each packet is due. It takes the place of one that was put there
// so before. It is attached as a filter, so it ends with the device. The error
// matches errors.ErrUnsupported if the kernel has no such filters (clsact, cls_bpf).
func (n *Namespace) PaceProgram(device string, fd int) error {
	return n.onDevice("put a program on", device, func(handle *netlink.Handle, link netlink.Link) error {
		if err := handle.QdiscAdd(clsact(link)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add clsact: %w", err)
		}
		if err := handle.FilterReplace(paceFilter(link, fd)); err != nil {
			return fmt.Errorf("add filter: %w", err)
		}
		return nil
	})
}

// Pacing finds what PaceQueue and PaceProgram have made. The error matches
// fs.ErrNotExist if there is no such device.
func (n *Namespace) Pacing(device string) (out Pacing, err error) {
	err = n.onDevice("read the pacing of", device, func(handle *netlink.Handle, link netlink.Link) error {
		filters, err := Dump(func() ([]netlink.Filter, error) { return handle.FilterList(link, netlink.HANDLE_MIN_EGRESS) })
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
				fq.PacketLimit == PacePackets && fq.FlowPacketLimit == PacePackets
		}
		return nil
	})
	return out, err
}

// Unpace removes what PaceQueue and PaceProgram have made, if it is there. The error
// matches fs.ErrNotExist if there is no such device.
func (n *Namespace) Unpace(device string) error {
	return n.onDevice("end the pacing of", device, func(handle *netlink.Handle, link netlink.Link) error {
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
