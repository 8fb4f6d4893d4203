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

// Limit is the maximum rate at which a device sends.
type Limit struct {
	// Rate is in bits per second; 0 means no limit.
	Rate uint64
	// Burst is in bits: the amount sent at once after a pause. It must hold one packet, and at most 274 seconds of the
	// rate. 0 means one millisecond of the rate, at least 64 KiB.
	Burst uint64
}

const (
	// limitMajor is the handle that identifies our qdisc: "ms" in ASCII.
	limitMajor = 0x6d73
	// limitLatency is the maximum queueing delay, as in the bandwidth plugin of containernetworking/plugins.
	limitLatency = 25 * time.Millisecond
	// etherHeader is the length of an Ethernet header in bytes.
	etherHeader = 14
)

// SetTBF limits the rate of a device by a token bucket filter (tbf), or removes that limit if the rate is 0. Packets
// queue for 25 ms at most and are dropped then. It replaces the root qdisc of the device, keeps its own if that has the
// same limit, and removes only its own. The error matches fs.ErrNotExist if the device does not exist, and
// errors.ErrUnsupported if the kernel lacks tbf.
func SetTBF(n *netns.Namespace, device string, limit Limit) error {
	return onDevice(n, "limit what is sent by", device, func(handle *netlink.Handle, link netlink.Link) error {
		have, err := limitOf(handle, link)
		if err != nil {
			return err
		}
		if limit.Rate == 0 {
			if have == nil {
				return nil
			}
			if err := handle.QdiscDel(have); err != nil {
				return fmt.Errorf("remove tbf: %w", err)
			}
			return nil
		}
		want, err := limit.tbf(link)
		if err != nil {
			return err
		}
		if have != nil && sameLimit(have, want) {
			return nil
		}
		if err := handle.QdiscReplace(want); err != nil {
			return fmt.Errorf("add tbf: %w", err)
		}
		return nil
	})
}

// deviationTBF describes how a device's limit differs from the one that SetTBF sets; it is empty if they agree. The
// error matches fs.ErrNotExist if the device does not exist.
func deviationTBF(n *netns.Namespace, device string, limit Limit) (says string, err error) {
	err = onDevice(n, "read the limit of", device, func(handle *netlink.Handle, link netlink.Link) error {
		have, err := limitOf(handle, link)
		if err != nil {
			return err
		}
		if limit.Rate == 0 {
			if have != nil {
				says = fmt.Sprintf("is limited to %d bit/s, not unlimited", have.Rate*8)
			}
			return nil
		}
		want, err := limit.tbf(link)
		if err != nil {
			return err
		}
		switch {
		case have == nil:
			says = fmt.Sprintf("is not limited to %d bit/s", limit.Rate)
		case have.Rate != want.Rate:
			says = fmt.Sprintf("is limited to %d bit/s, not %d", have.Rate*8, want.Rate*8)
		case !sameLimit(have, want):
			says = "has another burst"
		}
		return nil
	})
	return says, err
}

// onDevice calls do with a device and a handle in its namespace. Errors begin with the text of try.
func onDevice(n *netns.Namespace, try, device string, do func(*netlink.Handle, netlink.Link) error) error {
	handle, link, err := deviceHandle(n, device)
	if err == nil {
		defer handle.Close()
		err = rtnl.AsUnsupported(do(handle, link))
	}
	if err != nil {
		return fmt.Errorf("%s device %q in %q: %w", try, device, n.Name(), err)
	}
	return nil
}

// deviceHandle opens a handle in n and finds a device.
func deviceHandle(n *netns.Namespace, device string) (*netlink.Handle, netlink.Link, error) {
	handle, err := rtnl.In(n).Handle()
	if err != nil {
		return nil, nil, err
	}
	link, err := handle.LinkByName(device)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		err = fs.ErrNotExist
	}
	if err != nil {
		handle.Close()
		return nil, nil, err
	}
	return handle, link, nil
}

// queuesOf lists the qdiscs of a device.
func queuesOf(handle *netlink.Handle, link netlink.Link) ([]netlink.Qdisc, error) {
	queues, err := rtnl.Dump(func() ([]netlink.Qdisc, error) { return handle.QdiscList(link) })
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	return queues, nil
}

// limitOf returns our tbf of a device, or nil.
func limitOf(handle *netlink.Handle, link netlink.Link) (*netlink.Tbf, error) {
	queues, err := queuesOf(handle, link)
	if err != nil {
		return nil, err
	}
	for _, queue := range queues {
		tbf, ok := queue.(*netlink.Tbf)
		if ok && tbf.Parent == netlink.HANDLE_ROOT && tbf.Handle == netlink.MakeHandle(limitMajor, 0) {
			return tbf, nil
		}
	}
	return nil, nil
}

// Bytes returns the rate in bytes per second and the burst in bytes, its default if none is set.
func (l Limit) Bytes() (rate, burst uint64) {
	if l.Burst == 0 {
		return l.Rate / 8, burstAt(l.Rate / 8)
	}
	return l.Rate / 8, l.Burst / 8
}

// bucket returns the token bucket of the limit for a device, or an error if no packet would pass.
func (l Limit) bucket(link netlink.Link) (bucket, error) {
	rate, burst := l.Bytes()
	if rate == 0 {
		return bucket{}, fmt.Errorf("rate of %d bit/s is less than one byte per second", l.Rate)
	}
	if packet := uint64(link.Attrs().MTU + etherHeader); burst < packet {
		return bucket{}, fmt.Errorf("burst of %d bits is smaller than a packet of %d bytes", l.Burst, packet)
	}
	return bucket{rate, burst, uint64(float64(rate) * limitLatency.Seconds())}, nil
}

// tbf returns the limit as a qdisc of a device.
func (l Limit) tbf(link netlink.Link) (*netlink.Tbf, error) {
	b, err := l.bucket(link)
	if err != nil {
		return nil, err
	}
	return b.tbf(netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(limitMajor, 0),
	}), nil
}

func sameLimit(a, b *netlink.Tbf) bool {
	return a.Rate == b.Rate && a.Buffer == b.Buffer && a.Limit == b.Limit
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
