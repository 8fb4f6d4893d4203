// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
)

const (
	// A burst is a millisecond of the rate, and at least 64 KiB: one GSO packet, which the kernel would split.
	defaultBurst = time.Millisecond
	minBurst     = 64 << 10
	// emulatedQueue is how long packets wait for the rate: 10 ms, like the buffer of a switch. More are dropped.
	emulatedQueue    = 10 * time.Millisecond
	minEmulatedQueue = 256 << 10
	emulatedPackets  = 100_000 // the number of packets that netem holds
)

// Emulate makes a device send like one of a slower network. It replaces the root queueing discipline with tbf for the
// rate, in bits per second, and netem for the delay of each packet. 0 means no limit and no delay. The error matches
// errors.ErrUnsupported if the kernel lacks one of them. After any error the device is as before.
func Emulate(n *netns.Namespace, device string, rate uint64, delay time.Duration) error {
	return onDevice(n, "emulate a network at", device, func(handle *netlink.Handle, link netlink.Link) error {
		attrs := rootAttrs(link, 1)
		var queues []netlink.Qdisc
		if delay > 0 {
			queues = append(queues, netlink.NewNetem(attrs, netlink.NetemQdiscAttrs{
				Latency: uint32(delay.Microseconds()), Limit: emulatedPackets,
			}))
			// tbf is the child: delayed packets then wait for the rate.
			attrs.Parent, attrs.Handle = netlink.MakeHandle(1, 1), netlink.MakeHandle(2, 0)
		}
		if rate > 0 {
			queue := max(minEmulatedQueue, uint64(float64(rate/8)*emulatedQueue.Seconds()))
			queues = append(queues, tbf(attrs, rate/8, burstAt(rate/8), queue))
		}
		for i, queue := range queues {
			if err := handle.QdiscReplace(queue); err != nil {
				if i > 0 {
					_ = handle.QdiscDel(queues[0])
				}
				return fmt.Errorf("add %s: %w", queue.Type(), err)
			}
		}
		return nil
	})
}

// The range of Emulate, and its text in messages.
const (
	minRate  = 1_000_000
	maxRate  = 400_000_000_000
	rates    = "1mbit to 400gbit"
	minDelay = time.Microsecond // the resolution of netem
	maxDelay = time.Second
)

// CheckEmulation returns an error if a rate, in bits per second, or a delay is out of range for [Emulate]; 0 means no
// limit.
func CheckEmulation(rate uint64, delay time.Duration) error {
	switch {
	case rate != 0 && (rate < minRate || rate > maxRate):
		return fmt.Errorf("rate %d bit/s: want %s, or 0", rate, rates)
	case delay != 0 && (delay < minDelay || delay > maxDelay):
		return fmt.Errorf("delay %v: want %v to %v, or 0", delay, minDelay, maxDelay)
	}
	return nil
}

// rateUnits are the units of rates as tc writes them, in bits per second. Units that end with another one come first.
var rateUnits = []struct {
	name string
	bits float64
}{{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

// ParseRate parses a rate for [Emulate], such as "10gbit" or "1.5mbit", and returns bits per second.
func ParseRate(text string) (uint64, error) {
	for _, unit := range rateUnits {
		number, ok := strings.CutSuffix(strings.ToLower(text), unit.name)
		if !ok {
			continue
		}
		value, err := strconv.ParseFloat(number, 64)
		if bits := value * unit.bits; err == nil && bits >= minRate && bits <= maxRate {
			return uint64(bits), nil
		}
		break
	}
	return 0, fmt.Errorf("invalid rate %q: want a number and gbit, mbit, kbit or bit, from %s", text, rates)
}
