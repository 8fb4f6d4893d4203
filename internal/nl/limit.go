// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/vishvananda/netlink"
)

// RateLimit is the most that a device sends.
type RateLimit struct {
	// Rate is in bits per second; 0 is no limit.
	Rate uint64
	// Burst is in bits: what may be sent at once after a pause. It must have room for
	// one packet, and the kernel takes no more than 274 seconds of the rate. 0 is a
	// millisecond of the rate, but at least 64 KiB.
	Burst uint64
}

const (
	// limitMajor is the handle of our queueing discipline, by which it is told from
	// others': "ms" in ASCII.
	limitMajor = 0x6d73
	// limitLatency is how long a packet waits at most: as in the bandwidth plugin of
	// containernetworking/plugins.
	limitLatency = 25 * time.Millisecond
	// etherHeader is what Ethernet adds to a packet, in bytes.
	etherHeader = 14
)

// LimitRate limits what a device sends, or ends that limit if the rate is 0. What
// exceeds it waits, for 25 ms at most, and is dropped then. It takes the place of
// the device's root queueing discipline, but leaves its own as it is if that limits
// to the same; to end a limit it removes only its own. The error matches
// fs.ErrNotExist if there is no such device, and errors.ErrUnsupported if the
// kernel has no tbf.
//
// It is a token bucket filter (tbf). Package shaper has another way, for kernels with
// fq.
func (n *Namespace) LimitRate(device string, limit RateLimit) error {
	return n.onDevice("limit what is sent by", device, func(handle *netlink.Handle, link netlink.Link) error {
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

// RateDeviation says in what a device's limit is not as LimitRate leaves it; or is
// empty. The error matches fs.ErrNotExist if there is no such device.
func (n *Namespace) RateDeviation(device string, limit RateLimit) (says string, err error) {
	err = n.onDevice("read the limit of", device, func(handle *netlink.Handle, link netlink.Link) error {
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
			says = "has another burst than it is to have"
		}
		return nil
	})
	return says, err
}

// onDevice does something with a device. What an error says begins with what was
// tried.
func (n *Namespace) onDevice(try, device string, do func(*netlink.Handle, netlink.Link) error) error {
	handle, link, err := n.deviceHandle(device)
	if err == nil {
		defer handle.Close()
		err = unknown(do(handle, link))
	}
	if err != nil {
		return fmt.Errorf("%s device %q in %q: %w", try, device, n.Name(), err)
	}
	return nil
}

// deviceHandle opens a handle in n, and finds a device.
func (n *Namespace) deviceHandle(device string) (*netlink.Handle, netlink.Link, error) {
	handle, err := n.Netlink()
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

// queuesOf lists a device's queueing disciplines.
func queuesOf(handle *netlink.Handle, link netlink.Link) ([]netlink.Qdisc, error) {
	queues, err := Dump(func() ([]netlink.Qdisc, error) { return handle.QdiscList(link) })
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	return queues, nil
}

// limitOf returns our limit of a device; or nil.
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

// Bytes is the rate in bytes per second and the burst in bytes, its default if none
// is given.
func (l RateLimit) Bytes() (rate, burst uint64) {
	if l.Burst == 0 {
		return l.Rate / 8, burstAt(l.Rate / 8)
	}
	return l.Rate / 8, l.Burst / 8
}

// bucket is the limit as a bucket for a device, or an error if nothing would pass.
func (l RateLimit) bucket(link netlink.Link) (bucket, error) {
	rate, burst := l.Bytes()
	if rate == 0 {
		return bucket{}, fmt.Errorf("a rate of %d bit/s is less than a byte", l.Rate)
	}
	if packet := uint64(link.Attrs().MTU + etherHeader); burst < packet {
		return bucket{}, fmt.Errorf("a burst of %d bits has no room for a packet of %d bytes", l.Burst, packet)
	}
	return bucket{rate, burst, uint64(float64(rate) * limitLatency.Seconds())}, nil
}

// tbf is the limit as a queueing discipline of a device.
func (l RateLimit) tbf(link netlink.Link) (*netlink.Tbf, error) {
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
