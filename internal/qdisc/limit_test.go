// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// device is the limited device in these tests; peer is the destination of its packets.
const device, peer = "left", "10.0.0.2"

// lacking is pace on a kernel without fq.
func lacking(*netlink.Handle, netlink.Link, Limit) error { return errors.ErrUnsupported }

func sendingOf(t *testing.T, ns *netns.Namespace) (have sending) {
	t.Helper()
	testkit.Succeed(t, onDevice(ns, "read", device, func(handle *netlink.Handle, link netlink.Link) (err error) {
		have, err = readSending(handle, link)
		return err
	}))
	return have
}

// TestLimit sends more than a burst over several connections at once, and expects at least the time that the rate
// implies. It tests both methods, if the kernel has both.
func TestLimit(t *testing.T) {
	for name, first := range map[string]method{"departures": pace, "tbf": lacking} {
		t.Run(name, func(t *testing.T) {
			a, b := testkit.VethPair(t)
			if name == "departures" {
				testkit.RequireMode(t, rtnl.In(a).TryQdisc("fq"))
			}
			limit := Limit{Rate: 40e6}
			for range 2 { // the second time it stays as it is
				testkit.Succeed(t, setLimit(first, a, device, limit))
			}
			says, err := Deviation(a, device, limit)
			testkit.Check(t, says == "" && err == nil, "deviation %q, %v", says, err)
			server := testkit.Echo(t, b, "tcp", peer+":0").String()
			const flows, each = 4, 256 << 10
			began := time.Now()
			var group sync.WaitGroup
			for range flows {
				group.Go(func() {
					_, err := testkit.RoundTrip(t, a, "tcp", server, make([]byte, each))
					testkit.Check(t, err == nil, "%v", err)
				})
			}
			group.Wait()
			if took, least := time.Since(began), (flows*each-128<<10)*8*time.Second/40_000_000; took < least {
				t.Errorf("a mebibyte took %v, at least %v are needed", took, least)
			} else {
				t.Logf("a mebibyte took %v, at least %v are needed", took, least)
			}
		})
	}
}

// TestLimitWay looks which way was taken: by departure times only where the kernel
// has fq. The other way takes the place of each.
func TestLimitWay(t *testing.T) {
	a, _ := testkit.VethPair(t)
	limit, other := Limit{Rate: 1e6, Burst: math.MaxUint32}, Limit{Rate: 2e6}
	fq := rtnl.In(a).TryQdisc("fq")
	if errors.Is(fq, errors.ErrUnsupported) {
		testkit.NeedsOther(t)
	} else if fq != nil {
		t.Fatal(fq)
	}
	expect := func(departures bool, limit Limit) {
		t.Helper()
		have := sendingOf(t, a)
		testkit.Check(t, (have.tbf == nil) == departures && have.fq == departures && (have.program != 0) == departures,
			"limited by %+v", have)
		says, err := Deviation(a, device, limit)
		testkit.Check(t, says == "" && err == nil, "deviation %q, %v", says, err)
	}
	for _, step := range []struct {
		first      method
		limit      Limit
		departures bool
	}{
		{pace, limit, fq == nil},
		{lacking, limit, fq == nil}, // stays
		{lacking, other, false},
		{pace, other, false}, // stays
		{pace, limit, fq == nil},
	} {
		testkit.Succeed(t, setLimit(step.first, a, device, step.limit))
		expect(step.departures, step.limit)
	}
	for range 2 {
		testkit.Succeed(t, SetLimit(a, device, Limit{}))
		says, err := Deviation(a, device, Limit{})
		testkit.Check(t, says == "" && err == nil, "deviation %q, %v", says, err)
	}
	for _, bad := range []Limit{{Rate: 7}, {Rate: 1e6, Burst: 12_000}} {
		err := SetLimit(a, device, bad)
		testkit.Check(t, err != nil, "%+v was set", bad)
	}
	err := SetLimit(a, "none", limit)
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "a device that is not there: %v", err)
}

// TestDeviation changes a limit behind its back.
func TestDeviation(t *testing.T) {
	testkit.RequireTool(t, "tc")
	a, _ := testkit.VethPair(t)
	testkit.RequireMode(t, rtnl.In(a).TryQdisc("fq"))
	limit := Limit{Rate: 8e6, Burst: 8e6}
	for _, row := range []struct {
		name, tc string
		is       Limit // the limit to compare with
		says     string
	}{
		{"as set", "", limit, ""},
		{"rate", "", Limit{Rate: 4e6, Burst: 8e6}, "is not limited to 4000000 bit/s"},
		{"burst", "", Limit{Rate: 8e6}, "is not limited to 8000000 bit/s"},
		{"limited", "", Limit{}, "has a limit"},
		{"no queue", "qdisc del dev left root", limit, "is not limited"},
		{"other queue", "qdisc replace dev left root pfifo", limit, "is not limited"},
		{"other fq", "qdisc replace dev left root handle 9: fq", limit, "is not limited"},
		{"smaller fq", "qdisc change dev left root fq limit 10", limit, "is not limited"},
		{"no program", "qdisc del dev left clsact", limit, "is not limited"},
		{"no filter", "filter del dev left egress", limit, "is not limited"},
		{"part of it", "filter del dev left egress", Limit{}, "parts of one"},
		{"nothing", "qdisc del dev left clsact; qdisc del dev left root", limit, "is not limited to 8000000 bit/s"},
	} {
		testkit.Succeed(t, SetLimit(a, device, limit))
		for arguments := range strings.SplitSeq(row.tc, "; ") {
			if arguments != "" {
				tc(t, a, arguments)
			}
		}
		says, err := Deviation(a, device, row.is)
		testkit.Check(t, err == nil && strings.Contains(says, row.says) && (says == "") == (row.says == ""),
			"%s: %q, %v, want %q", row.name, says, err, row.says)
	}
}

// programOf limits a device by departure times, by the program alone if the kernel lacks fq, and returns the
// program's number.
func programOf(t *testing.T, ns *netns.Namespace, limit Limit) uint32 {
	t.Helper()
	err := onDevice(ns, "limit", device, func(handle *netlink.Handle, link netlink.Link) error {
		err := pace(handle, link, limit)
		if errors.Is(err, errors.ErrUnsupported) {
			testkit.NeedsOther(t)
			err = attachPacer(handle, link, limit)
		}
		return err
	})
	testkit.Succeed(t, err)
	program := sendingOf(t, ns).program
	testkit.Require(t, program != 0, "no program")
	return program
}

// awaitGone waits until the kernel has deleted the program.
func awaitGone(t *testing.T, id uint32) {
	t.Helper()
	testkit.Eventually(t, 5*time.Second, func() error {
		program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			_ = program.Close()
		}
		return fmt.Errorf("program %d is there still, %w", id, err)
	})
}

func tc(t *testing.T, ns *netns.Namespace, arguments string) string {
	t.Helper()
	return testkit.Command(t, ns, "tc "+arguments)
}

// slow lets two datagrams of a flood pass at once, two more within the horizon, and one a second from then on.
var slow = Limit{Rate: 8_000, Burst: 20_000}

// TestOtherPrograms floods a device that has programs of others by tcx, which came
// before the limit and after it: most is dropped all the same.
func TestOtherPrograms(t *testing.T) {
	testkit.RequireKernel(t, 6, 6)
	testkit.RequireTool(t, "tc")
	a, _ := testkit.VethPair(t)
	attachTCX(t, a)
	programOf(t, a, slow)
	attachTCX(t, a)
	const count = 60
	err := a.Do(func() error {
		conn, err := net.ListenPacket("udp4", ":0")
		if err != nil {
			return err
		}
		defer conn.Close()
		for range count { // a drop may be an error, and so is a closed port
			_, _ = conn.WriteTo(make([]byte, 1000), &net.UDPAddr{IP: net.ParseIP(peer), Port: 9})
		}
		return nil
	})
	testkit.Succeed(t, err)
	stats := tc(t, a, "-s qdisc show dev "+device)
	found := regexp.MustCompile(`clsact[^\n]*\n[^\n]*\(dropped (\d+)`).FindStringSubmatch(stats)
	testkit.Require(t, found != nil, "no clsact in %q", stats)
	dropped, _ := strconv.Atoi(found[1])
	testkit.Check(t, dropped >= count/2, "of %d datagrams %d were dropped", count, dropped)
}

func attachTCX(t *testing.T, ns *netns.Namespace) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	testkit.Succeed(t, err)
	defer p.Close()
	d := testkit.Must(rtnl.In(ns).Device(device))(t)
	var l link.Link
	err = ns.Do(func() (err error) {
		l, err = link.AttachTCX(link.TCXOptions{Interface: d.Index, Program: p, Attach: ebpf.AttachTCXEgress})
		return err
	})
	testkit.Succeed(t, err)
	t.Cleanup(func() { _ = l.Close() })
}

// TestNothingLeft ends a limit, and deletes a limited device: the program is gone from the kernel, and the device
// keeps only what belongs to others.
func TestNothingLeft(t *testing.T) {
	testkit.RequireTool(t, "tc")
	a, _ := testkit.VethPair(t)
	before := tc(t, a, "qdisc show dev "+device)
	id := programOf(t, a, slow)
	says, err := Deviation(a, device, Limit{})
	testkit.Check(t, says != "" && err == nil, "deviation %q, %v", says, err)
	testkit.Succeed(t, SetLimit(a, device, Limit{}))
	awaitGone(t, id)
	after := tc(t, a, "qdisc show dev "+device)
	testkit.Check(t, after == before, "queues before %q, after %q", before, after)
	tc(t, a, "qdisc add dev left clsact")
	tc(t, a, "filter add dev left ingress protocol ip u32 match u32 0 0 flowid 1:1")
	id = programOf(t, a, slow)
	testkit.Succeed(t, SetLimit(a, device, Limit{}))
	awaitGone(t, id)
	filters := tc(t, a, "filter show dev left ingress")
	testkit.Check(t, strings.Contains(filters, "u32"), "another's filter is gone: %q", filters)
	id = programOf(t, a, slow)
	testkit.Command(t, a, "ip link del "+device)
	awaitGone(t, id)
}
