// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"math"
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
		queues = append(queues, shape.bucket().tbf(attrs))
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

// bucket is the bucket of the shape's rate.
func (s Shape) bucket() bucket {
	rate := s.Rate / 8
	return bucket{rate: rate, burst: burstAt(rate), queue: max(minShapeQueue, uint64(float64(rate)*shapeQueue.Seconds()))}
}

// burstAt is the burst for a rate in bytes per second, if none is asked for.
func burstAt(rate uint64) uint64 {
	return max(minShapeBurst, uint64(float64(rate)*shapeBurst.Seconds()))
}

// bucket is a token bucket: bytes per second, bytes that may be sent at once, and
// bytes that may wait besides.
type bucket struct{ rate, burst, queue uint64 }

// tbf is the bucket as a token bucket filter. The kernel counts a burst as the time
// that it takes at the rate, in 32 bits of 64 ns: 274 seconds at most. It must not
// be less than was asked for, or a packet of just that size would never pass.
func (b bucket) tbf(attrs netlink.QdiscAttrs) *netlink.Tbf {
	ticks := math.Ceil(float64(b.burst) / float64(b.rate) * netlink.TIME_UNITS_PER_SEC * netlink.TickInUsec())
	return &netlink.Tbf{
		QdiscAttrs: attrs, Rate: b.rate,
		Buffer: uint32(min(ticks, math.MaxUint32)), Limit: uint32(min(b.queue+b.burst, math.MaxUint32)),
	}
}
