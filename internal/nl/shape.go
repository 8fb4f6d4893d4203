// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

// Shape is what slows down what a device sends.
type Shape struct {
	// Rate is in bits per second, Delay is added to each packet. 0 is none.
	Rate  uint64
	Delay time.Duration
}

const (
	// shapeBurst is what may be sent at once at a rate: a millisecond of it, but room
	// for a batch of segments, since the kernel would cut larger ones first.
	shapeBurst    = time.Millisecond
	minShapeBurst = 64 << 10
	// shapeQueue is what waits for its turn: 10 milliseconds, as much as a switch has.
	// The rest is dropped.
	shapeQueue    = 10 * time.Millisecond
	minShapeQueue = 256 << 10
	// shapeDelayed is how many packets can be on their way at once.
	shapeDelayed = 100_000
)

// Shape gives a device queueing disciplines (tbf for the rate, netem for the
// delay) in the place of its own. The error matches errors.ErrUnsupported if the
// kernel lacks one; then, and with any other error, the device is as before.
func (n *Namespace) Shape(device string, shape Shape) (err error) {
	fail := func(err error) error {
		return fmt.Errorf("shape traffic of device %q in network namespace %q: %w", device, n.Name(), unknown(err))
	}
	handle, err := n.Netlink()
	if err != nil {
		return fail(err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(device)
	if err != nil {
		return fail(err)
	}
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}
	var queues []netlink.Qdisc
	if shape.Delay > 0 {
		queues = append(queues, netlink.NewNetem(attrs, netlink.NetemQdiscAttrs{
			Latency: uint32(shape.Delay.Microseconds()), Limit: shapeDelayed,
		}))
		// What is due then waits for the rate.
		attrs.Parent, attrs.Handle = netlink.MakeHandle(1, 1), netlink.MakeHandle(2, 0)
	}
	if shape.Rate > 0 {
		queues = append(queues, newTBF(attrs, shape.Rate))
	}
	for i, queue := range queues {
		if err := handle.QdiscReplace(queue); err != nil {
			if i > 0 {
				_ = handle.QdiscDel(queues[0])
			}
			return fail(fmt.Errorf("add %s: %w", queue.Type(), err))
		}
	}
	return nil
}

// newTBF is a token bucket filter.
func newTBF(attrs netlink.QdiscAttrs, bits uint64) netlink.Qdisc {
	rate := bits / 8
	burst := max(minShapeBurst, uint64(float64(rate)*shapeBurst.Seconds()))
	queue := max(minShapeQueue, uint64(float64(rate)*shapeQueue.Seconds()))
	return &netlink.Tbf{
		QdiscAttrs: attrs, Rate: rate, Buffer: netlink.Xmittime(rate, uint32(burst)), Limit: uint32(queue + burst),
	}
}
