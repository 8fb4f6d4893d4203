// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"sigs.k8s.io/knftables"

	"mustang/internal/testkit"
)

// TestNetfilterCall switches the call on and off, and back again under the same
// pods. It reads it back, and counts by rules of the host, in the tables for
// routed packets, what crosses the bridge from pod to pod.
func TestNetfilterCall(t *testing.T) {
	testkit.RequireTool(t, "nft")
	for _, first := range []bool{false, true} {
		t.Run(fmt.Sprintf("first %t", first), func(t *testing.T) {
			f := newHostOf(t, "bridge")
			if !hasNetfilterCall(f.network.Host) {
				testkit.Skip(t, "needs the kernel module br_netfilter")
			}
			pods := []Pod{f.newPod(t, 0), f.newPod(t, 1)}
			for _, on := range []bool{first, !first, first} {
				f.network.NetfilterCall = on
				if err := f.mode.Setup(f.network); err != nil {
					t.Fatal(err)
				}
				if f.pods == nil {
					f.create(t, pods[0])
					f.create(t, pods[1])
				}
				testNetfilterCall(t, f)
			}
		})
	}
}

func testNetfilterCall(t *testing.T, f *fixture) {
	t.Helper()
	want := f.network.NetfilterCall
	got, err := NetfilterCall(f.network.Host, DefaultBridge)
	if err != nil || got != want {
		t.Errorf("NetfilterCall = %t, %v; set was %t", got, err, want)
	}
	if err := f.mode.Check(f.network, f.pods[0]); err != nil {
		t.Error(err)
	}
	for _, target := range f.pods[1].Addresses {
		count := countPackets(t, f, target, func() {
			server := testkit.Echo(t, f.pods[1].Namespace, "udp", netip.AddrPortFrom(target, 0).String())
			if _, err := testkit.RoundTrip(t, f.pods[0].Namespace, "udp", server.String(), []byte("hello")); err != nil {
				t.Fatal(err)
			}
		})
		if want && count == 0 {
			t.Errorf("the call is on, but no packet to %v was seen", target)
		}
		if !want && count != 0 {
			t.Errorf("the call is off, but %d packets to %v were seen", count, target)
		}
	}
}

// countPackets counts the UDP packets to addr that the host's prerouting rules
// see while send runs.
func countPackets(t *testing.T, f *fixture, addr netip.Addr, send func()) uint64 {
	t.Helper()
	const table, chain, counter = "mst-test", "prerouting", "seen"
	family := knftables.IPv4Family
	if addr.Is6() {
		family = knftables.IPv6Family
	}
	var rules knftables.Interface
	// Every step runs the program nft, so it has to be inside the host.
	inHost := func(step func(ctx context.Context) error) {
		t.Helper()
		if err := f.network.Host.Do(func() error { return step(context.Background()) }); err != nil {
			t.Fatal(err)
		}
	}
	inHost(func(ctx context.Context) (err error) {
		if rules, err = knftables.New(family, table); err != nil {
			return err
		}
		tx := rules.NewTransaction()
		tx.Add(&knftables.Table{})
		tx.Add(&knftables.Chain{
			Name: chain, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(knftables.PreroutingHook),
			Priority: knftables.PtrTo(knftables.RawPriority),
		})
		tx.Add(&knftables.Counter{Name: counter, Packets: knftables.PtrTo(uint64(0)), Bytes: knftables.PtrTo(uint64(0))})
		tx.Add(&knftables.Rule{
			Chain: chain,
			Rule:  knftables.Concat(family, "daddr", addr, "meta l4proto udp counter name", counter),
		})
		return rules.Run(ctx, tx)
	})
	send()
	var count uint64
	inHost(func(ctx context.Context) error {
		counters, err := rules.ListCounters(ctx)
		for _, c := range counters {
			count += *c.Packets
		}
		tx := rules.NewTransaction()
		tx.Delete(&knftables.Table{})
		return errors.Join(err, rules.Run(ctx, tx))
	})
	return count
}

// TestNetfilterCallErrors asks about what is no bridge, and about one that is
// set for one family only.
func TestNetfilterCallErrors(t *testing.T) {
	f := newFixture(t, newBridge(), 0)
	for _, name := range []string{"absent", uplinkName} {
		if on, err := NetfilterCall(f.network.Host, name); err == nil {
			t.Errorf("NetfilterCall(%q) = %t", name, on)
		}
	}
	if !hasNetfilterCall(f.network.Host) {
		testkit.Skip(t, "needs the kernel module br_netfilter")
	}
	if err := f.network.Host.SetSysctl(callSysctl+"ip6tables", "1"); err != nil {
		t.Fatal(err)
	}
	if on, err := NetfilterCall(f.network.Host, DefaultBridge); err == nil {
		t.Errorf("NetfilterCall = %t, though IPv4 and IPv6 differ", on)
	}
}
