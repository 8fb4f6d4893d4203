// SPDX-License-Identifier: Apache-2.0

package netstat_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"sigs.k8s.io/knftables"

	"mustang/internal/netns"
	"mustang/internal/netstat"
	"mustang/internal/testkit"
)

// TestLookup makes connections that the kernel tracks because of a rule, until the table is emptied.
func TestLookup(t *testing.T) {
	testkit.RequireTool(t, "nft")
	ns := testkit.Namespace(t, "flows")
	for _, orig := range []netstat.Tuple{{}, {Src: netip.MustParseAddrPort("127.0.0.1:1")},
		{Src: netip.MustParseAddrPort("127.0.0.1:1"), Dst: netip.MustParseAddrPort("[::1]:1")}} {
		flow, ok, err := netstat.Lookup(ns, 6, orig)
		testkit.Check(t, err == nil && !ok, "look-up of %v: %v, %t, %v", orig, flow, ok, err)
	}
	testkit.Succeed(t, ns.Do(trackConnections))
	for _, network := range []string{"tcp", "udp"} {
		for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
			t.Run(fmt.Sprint(network, " ", addr), func(t *testing.T) {
				server := testkit.Echo(t, ns, network, addr)
				client := testkit.Must(testkit.RoundTrip(t, ns, network, server.String(), []byte("hello")))(t)
				proto := map[string]uint8{"tcp": 6, "udp": 17}[network]
				orig, want := netstat.Tuple{Src: client, Dst: server}, netstat.Tuple{Src: server, Dst: client}
				got, ok, err := netstat.Lookup(ns, proto, orig)
				testkit.Check(t, err == nil && ok && got == want, "look-up: %v, %t, %v, want %v", got, ok, err, want)
				testkit.Succeed(t, netstat.Flush(ns))
				got, ok, err = netstat.Lookup(ns, proto, orig)
				testkit.Check(t, err == nil && !ok, "look-up after the table was emptied: %v, %t, %v", got, ok, err)
				got, ok, err = netstat.Lookup(ns, proto, want)
				testkit.Check(t, err == nil && (!ok || got != want), "look-up of %v: %v, %t, %v", want, got, ok, err)
			})
		}
	}
}

func trackConnections() error {
	rules, err := knftables.New(knftables.InetFamily, "mst-test")
	if err != nil {
		return err
	}
	tx := rules.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{
		Name: "input", Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(knftables.InputHook),
		Priority: knftables.PtrTo(knftables.FilterPriority),
	})
	tx.Add(&knftables.Rule{Chain: "input", Rule: "ct state invalid drop"})
	return rules.Run(context.Background(), tx)
}

// TestIPCounts sends datagrams over a namespace's loopback and checks the counts of its IP layers: 20 of IPv4, 30 of
// IPv6.
func TestIPCounts(t *testing.T) {
	t.Parallel()
	ns := testkit.Namespace(t, "ip-counts")
	before4, before6, err := netstat.ReadIPCounters(ns)
	testkit.Succeed(t, err)
	sendOver(t, ns, "127.0.0.1:0", 20)
	sendOver(t, ns, "[::1]:0", 30)
	after4, after6, err := netstat.ReadIPCounters(ns)
	testkit.Succeed(t, err)
	// The kernel itself sends some IPv6 packets.
	if sent, delivered := after4.Sent-before4.Sent, after4.Delivered-before4.Delivered; sent != 20 || delivered != 20 {
		t.Errorf("IPv4: %d sent and %d delivered, want 20", sent, delivered)
	}
	if sent, delivered := after6.Sent-before6.Sent, after6.Delivered-before6.Delivered; sent < 30 || sent > 40 ||
		delivered < 30 || delivered > 40 {
		t.Errorf("IPv6: %d sent and %d delivered, want 30", sent, delivered)
	}
	testkit.Check(t, after4.Forwarded+after6.Forwarded == 0,
		"%d and %d forwarded in a namespace with one device", after4.Forwarded, after6.Forwarded)
}

func sendOver(t *testing.T, ns *netns.Namespace, address string, packets int) {
	t.Helper()
	err := ns.Do(func() error {
		server, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		defer server.Close()
		client, err := net.Dial("udp", server.LocalAddr().String())
		if err != nil {
			return err
		}
		defer client.Close()
		for range packets {
			if _, err := client.Write([]byte("x")); err != nil {
				return err
			}
		}
		return nil
	})
	testkit.Succeed(t, err)
}
