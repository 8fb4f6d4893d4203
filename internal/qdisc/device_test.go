// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// slow lets two datagrams of a flood pass at once, two more within the horizon, and
// one a second from then on.
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
		for range count { // what is dropped may be an error, and so is a closed port
			_, _ = conn.WriteTo(make([]byte, 1000), &net.UDPAddr{IP: net.ParseIP(peer), Port: 9})
		}
		return nil
	})
	testkit.Succeed(t, err)
	stats := tc(t, a, "-s qdisc show dev "+device)
	found := regexp.MustCompile(`clsact[^\n]*\n[^\n]*\(dropped (\d+)`).FindStringSubmatch(stats)
	if found == nil {
		t.Fatalf("no clsact in %q", stats)
	}
	if dropped, _ := strconv.Atoi(found[1]); dropped < count/2 {
		t.Errorf("of %d datagrams %d were dropped", count, dropped)
	}
}

// attachTCX puts a program on the device that passes all on.
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

// TestNothingLeft ends a limit, and deletes a limited device: the program is gone
// from the kernel, and from the device all but what is another's.
func TestNothingLeft(t *testing.T) {
	testkit.RequireTool(t, "tc")
	a, _ := testkit.VethPair(t)
	before := tc(t, a, "qdisc show dev "+device)
	id := programOf(t, a, slow)
	if says, err := Deviation(a, device, Limit{}); says != "is limited to 8000 bit/s, not unlimited" || err != nil {
		t.Errorf("deviation %q, %v", says, err)
	}
	testkit.Succeed(t, SetLimit(a, device, Limit{}))
	awaitGone(t, id)
	if after := tc(t, a, "qdisc show dev "+device); after != before {
		t.Errorf("queues before %q, after %q", before, after)
	}
	tc(t, a, "qdisc add dev left clsact")
	tc(t, a, "filter add dev left ingress protocol ip u32 match u32 0 0 flowid 1:1")
	id = programOf(t, a, slow)
	testkit.Succeed(t, SetLimit(a, device, Limit{}))
	awaitGone(t, id)
	if filters := tc(t, a, "filter show dev left ingress"); !strings.Contains(filters, "u32") {
		t.Errorf("another's filter is gone: %q", filters)
	}
	id = programOf(t, a, slow)
	testkit.Command(t, a, "ip link del "+device)
	awaitGone(t, id)
}
