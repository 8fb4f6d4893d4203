// SPDX-License-Identifier: Apache-2.0

// Package qdisc emulates slow networks on devices.
//
// With queue fq a limit is an eBPF program that sets a departure time for each packet (EDT). Without fq it is a token
// bucket filter (tbf). Either way one limit covers all packets that a device sends and ends with the device: nothing
// is pinned, and no process has to run. A limit of received packets drops, and queues nothing.
package qdisc

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Limit is the maximum rate at which a device sends.
type Limit struct {
	Rate uint64 // in bits per second; 0 means no limit
	// Burst is in bits: the amount sent at once after a pause. It must hold one packet, and at most 274 seconds of the
	// rate. 0 means one millisecond of the rate, at least 64 KiB.
	Burst uint64
}

// SetLimit limits the rate at which a device sends, or removes the limit if the rate is 0. Excess packets queue. They
// are dropped if they would wait longer than 4 MiB take at the rate, 25 ms to 2 s; with tbf 25 ms. The same limit in
// place stays. The limit replaces the root qdisc of the device. Removal deletes only our own qdisc.
//
// The error matches fs.ErrNotExist if the device does not exist, and errors.ErrUnsupported if the kernel has neither
// method. The device may be without a limit then.
func SetLimit(ns *netns.Namespace, device string, limit Limit) error {
	return setLimit(pace, ns, device, limit)
}

type method func(*netlink.Handle, netlink.Link, Limit) error

func setLimit(first method, ns *netns.Namespace, device string, limit Limit) error {
	return onDevice(ns, "limit what is sent by", device, func(handle *netlink.Handle, link netlink.Link) error {
		have, tbf, deviation, err := compare(handle, link, limit)
		if err != nil || deviation == "" {
			return err
		}
		var lacks error
		if tbf != nil {
			if lacks = rtnl.AsUnsupported(first(handle, link, limit)); !errors.Is(lacks, errors.ErrUnsupported) {
				return lacks
			}
		}
		if err := unpace(handle, link); err != nil {
			return err
		}
		switch {
		case tbf != nil:
			if err := rtnl.AsUnsupported(handle.QdiscReplace(tbf)); err != nil {
				return fmt.Errorf("add tbf: %w; departure times: %w", err, lacks)
			}
		case have.tbf != nil:
			if err := handle.QdiscDel(have.tbf); err != nil {
				return fmt.Errorf("remove tbf: %w", err)
			}
		}
		return nil
	})
}

// Deviation describes how a device's limit differs from limit, whichever method enforces it; it is empty if they agree.
// The error matches fs.ErrNotExist if the device does not exist.
func Deviation(ns *netns.Namespace, device string, limit Limit) (says string, err error) {
	err = onDevice(ns, "read the limit of", device, func(handle *netlink.Handle, link netlink.Link) (err error) {
		_, _, says, err = compare(handle, link, limit)
		return err
	})
	return says, err
}

// compare reads the limit of a device, and describes how it differs from limit. want is limit as a token bucket filter,
// nil without a rate.
func compare(handle *netlink.Handle, link netlink.Link, limit Limit) (
	have sending, want *netlink.Tbf, deviation string, err error,
) {
	if limit.Rate > 0 {
		if err := limit.check(link); err != nil {
			return have, nil, "", err
		}
		rate, burst := limit.bytes()
		want = tbf(rootAttrs(link, limitMajor), rate, burst, uint64(float64(rate)*limitLatency.Seconds()))
	}
	if have, err = readSending(handle, link); err != nil {
		return have, nil, "", err
	}
	return have, want, have.deviation(limit, want), nil
}

type sending struct {
	tbf     *netlink.Tbf // nil unless it is ours
	fq      bool         // holds packets until their departure time, as the root qdisc
	program uint32       // sets departure times; 0 if none does
	bucket  *edtBucket   // of the program; nil unless it is ours
}

func readSending(handle *netlink.Handle, link netlink.Link) (out sending, err error) {
	queues, err := queuesOf(handle, link)
	if err != nil {
		return out, err
	}
	for _, queue := range queues {
		attrs := queue.Attrs()
		switch q := queue.(type) {
		case *netlink.Tbf:
			if attrs.Parent == netlink.HANDLE_ROOT && attrs.Handle == netlink.MakeHandle(limitMajor, 0) {
				out.tbf = q
			}
		case *netlink.Fq:
			out.fq = attrs.Parent == netlink.HANDLE_ROOT && attrs.Handle == netlink.MakeHandle(paceMajor, 0) &&
				q.PacketLimit == fqPackets && q.FlowPacketLimit == fqPackets
		}
	}
	filters, err := filtersOf(handle, link, netlink.HANDLE_MIN_EGRESS)
	if err != nil {
		return out, fmt.Errorf("list filters: %w", err)
	}
	for _, filter := range filters {
		if bpf, ok := filter.(*netlink.BpfFilter); ok && bpf.Priority == paceMajor && bpf.DirectAction {
			out.program = uint32(bpf.Id)
		}
	}
	out.bucket, err = heldTo(out.program, edtProgEdt)
	return out, err
}

// deviation compares with a limit; tbf is the limit as a token bucket filter.
func (s sending) deviation(limit Limit, tbf *netlink.Tbf) string {
	switch {
	case limit.Rate == 0 && s != (sending{}):
		return "has a limit or parts of one, not unlimited"
	case limit.Rate == 0,
		s.tbf != nil && s.tbf.Rate == tbf.Rate && s.tbf.Buffer == tbf.Buffer && s.tbf.Limit == tbf.Limit,
		s.tbf == nil && s.fq && s.bucket != nil && s.bucket.same(bucketOf(limit)):
		return ""
	}
	return fmt.Sprintf("is not limited to %d bit/s with a burst of %d", limit.Rate, limit.Burst)
}

// pace limits the sending of a device by departure times: fq is the root qdisc, and a program sets them. If the
// kernel lacks a part, the error matches errors.ErrUnsupported, and nothing is left.
func pace(handle *netlink.Handle, link netlink.Link, limit Limit) error {
	queue := netlink.NewFq(rootAttrs(link, paceMajor))
	queue.PacketLimit, queue.FlowPacketLimit = fqPackets, fqPackets
	queue.Pacing = 0 // TCP paces its sockets itself, as without fq
	if err := rtnl.AsUnsupported(handle.QdiscReplace(queue)); err != nil {
		return fmt.Errorf("add fq: %w", err)
	}
	if err := attachPacer(handle, link, limit); err != nil {
		return errors.Join(rtnl.AsUnsupported(err), unpace(handle, link))
	}
	return nil
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
	if err := handle.FilterReplace(ourFilter(link, netlink.HANDLE_MIN_EGRESS, objects.Program.FD())); err != nil {
		return fmt.Errorf("add filter: %w", err)
	}
	return nil
}

func unpace(handle *netlink.Handle, link netlink.Link) error {
	if err := gone(handle.FilterDel(ourFilter(link, netlink.HANDLE_MIN_EGRESS, -1))); err != nil {
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

const (
	// maxBurst is the longest time to fill a bucket: tbf's, so that both methods let the same traffic pass.
	maxBurst = math.MaxUint32 * 64 * time.Nanosecond
	// A packet waits at most for the time that a full fq of the smallest frames takes at the rate, within these bounds.
	minHorizon, maxHorizon = 25 * time.Millisecond, 2 * time.Second
	smallestFrame          = 64 // bytes
)

func bucketOf(limit Limit) edtBucket {
	rate, burst := limit.bytes()
	horizon := timeOf(fqPackets*smallestFrame, rate)
	return edtBucket{
		Rate: rate, Burst: uint64(min(timeOf(burst, rate), maxBurst)),
		Horizon: uint64(min(max(horizon, minHorizon), maxHorizon)),
	}
}

func timeOf(bytes, rate uint64) time.Duration {
	return time.Duration(min(math.Ceil(float64(bytes)/float64(rate)*float64(time.Second)), float64(time.Hour)))
}

const (
	limitMajor = 0x6d73 // the handle that identifies our tbf: "ms" in ASCII
	// limitLatency is the maximum queueing delay, as in the bandwidth plugin of containernetworking/plugins.
	limitLatency = 25 * time.Millisecond
	// fqPackets is the capacity of fq, for all flows and for each. The program must drop first: fq's drops use up rate.
	fqPackets   = 1 << 16
	etherHeader = 14 // the length of an Ethernet header in bytes
)

func onDevice(n *netns.Namespace, try, device string, do func(*netlink.Handle, netlink.Link) error) error {
	return rtnl.In(n).OnDevice(try+" ", device, func(handle *netlink.Handle, link netlink.Link) error {
		return rtnl.AsUnsupported(do(handle, link))
	})
}

func rootAttrs(link netlink.Link, major uint16) netlink.QdiscAttrs {
	return netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(major, 0),
	}
}

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

func (l Limit) check(link netlink.Link) error {
	rate, burst := l.bytes()
	if rate == 0 {
		return fmt.Errorf("rate of %d bit/s is less than one byte per second", l.Rate)
	}
	if packet := uint64(link.Attrs().MTU + etherHeader); burst < packet {
		return fmt.Errorf("burst of %d bits is smaller than a packet of %d bytes", l.Burst, packet)
	}
	return nil
}

func burstAt(rate uint64) uint64 { return max(minBurst, uint64(float64(rate)*defaultBurst.Seconds())) }

// tbf returns a token bucket filter; rate is in bytes per second, burst and queue in bytes. The kernel stores a burst
// as its time at the rate, in 32 bits of 64 ns: 274 seconds at most. Rounding down would drop packets of that size.
func tbf(attrs netlink.QdiscAttrs, rate, burst, queue uint64) *netlink.Tbf {
	ticks := math.Ceil(float64(burst) / float64(rate) * netlink.TIME_UNITS_PER_SEC * netlink.TickInUsec())
	return &netlink.Tbf{
		QdiscAttrs: attrs, Rate: rate,
		Buffer: uint32(min(ticks, math.MaxUint32)), Limit: uint32(min(queue+burst, math.MaxUint32)),
	}
}

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

// CheckEmulation returns an error if a rate, in bits per second, or a delay is out of range for [Emulate]; 0: no limit.
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
