// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

const (
	// limitMajor is the handle that identifies our tbf: "ms" in ASCII.
	limitMajor = 0x6d73
	// limitLatency is the maximum queueing delay, as in the bandwidth plugin of containernetworking/plugins.
	limitLatency = 25 * time.Millisecond
	// etherHeader is the length of an Ethernet header in bytes.
	etherHeader = 14
)

// onDevice calls do with a device and a handle in its namespace. Errors begin with the text of try.
func onDevice(n *netns.Namespace, try, device string, do func(*netlink.Handle, netlink.Link) error) error {
	handle, err := rtnl.In(n).Handle()
	if err != nil {
		return fmt.Errorf("%s device %q: %w", try, device, err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(device)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		err = fs.ErrNotExist
	}
	if err == nil {
		err = rtnl.AsUnsupported(do(handle, link))
	}
	if err != nil {
		return fmt.Errorf("%s device %q in %q: %w", try, device, n.Name(), err)
	}
	return nil
}

// rootAttrs are the attributes of a root qdisc.
func rootAttrs(link netlink.Link, major uint16) netlink.QdiscAttrs {
	return netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(major, 0),
	}
}

// queuesOf lists the qdiscs of a device.
func queuesOf(handle *netlink.Handle, link netlink.Link) ([]netlink.Qdisc, error) {
	queues, err := rtnl.Dump(func() ([]netlink.Qdisc, error) { return handle.QdiscList(link) })
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	return queues, nil
}

// bytes returns the rate in bytes per second and the burst in bytes, its default if none is set.
func (l Limit) bytes() (rate, burst uint64) {
	if l.Burst == 0 {
		return l.Rate / 8, burstAt(l.Rate / 8)
	}
	return l.Rate / 8, l.Burst / 8
}

// bucket returns the token bucket of the limit for a device, or an error if no packet would pass.
func (l Limit) bucket(link netlink.Link) (bucket, error) {
	rate, burst := l.bytes()
	if rate == 0 {
		return bucket{}, fmt.Errorf("rate of %d bit/s is less than one byte per second", l.Rate)
	}
	if packet := uint64(link.Attrs().MTU + etherHeader); burst < packet {
		return bucket{}, fmt.Errorf("burst of %d bits is smaller than a packet of %d bytes", l.Burst, packet)
	}
	return bucket{rate, burst, uint64(float64(rate) * limitLatency.Seconds())}, nil
}

// burstAt is the default burst for a rate in bytes per second.
func burstAt(rate uint64) uint64 {
	return max(minBurst, uint64(float64(rate)*defaultBurst.Seconds()))
}

// bucket is a token bucket: bytes per second, burst in bytes, and queue limit in bytes.
type bucket struct{ rate, burst, queue uint64 }

// tbf converts the bucket to a token bucket filter. The kernel stores a burst as the time that it takes at the rate, in
// 32 bits of 64 ns, hence 274 seconds at most. Rounding down would drop packets of exactly the burst size.
func (b bucket) tbf(attrs netlink.QdiscAttrs) *netlink.Tbf {
	ticks := math.Ceil(float64(b.burst) / float64(b.rate) * netlink.TIME_UNITS_PER_SEC * netlink.TickInUsec())
	return &netlink.Tbf{
		QdiscAttrs: attrs, Rate: b.rate,
		Buffer: uint32(min(ticks, math.MaxUint32)), Limit: uint32(min(b.queue+b.burst, math.MaxUint32)),
	}
}
