// SPDX-License-Identifier: Apache-2.0

package netstat_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"sigs.k8s.io/knftables"

	"mustang/internal/netstat"
	"mustang/internal/testkit"
)

// TestLookup makes connections that the kernel tracks because of a rule, until the table is emptied.
func TestLookup(t *testing.T) {
	testkit.RequireTool(t, "nft")
	ns := testkit.Namespace(t, "flows")
	for _, orig := range []netstat.Tuple{{}, {Src: netip.MustParseAddrPort("127.0.0.1:1")}, {Src: netip.MustParseAddrPort("127.0.0.1:1"), Dst: netip.MustParseAddrPort("[::1]:1")}} {
		if flow, ok, err := netstat.Lookup(ns, 6, orig); err != nil || ok {
			t.Errorf("look-up of %v: %v, %t, %v", orig, flow, ok, err)
		}
	}
	testkit.Succeed(t, ns.Do(trackConnections))
	for _, network := range []string{"tcp", "udp"} {
		for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
			t.Run(fmt.Sprint(network, " ", addr), func(t *testing.T) {
				server := testkit.Echo(t, ns, network, addr)
				client := testkit.Must(testkit.RoundTrip(t, ns, network, server.String(), []byte("hello")))(t)
				want := netstat.Flow{
					Proto: map[string]uint8{"tcp": 6, "udp": 17}[network],
					Orig:  netstat.Tuple{Src: client, Dst: server},
					Reply: netstat.Tuple{Src: server, Dst: client},
				}
				if got, ok, err := netstat.Lookup(ns, want.Proto, want.Orig); err != nil || !ok || got != want {
					t.Errorf("look-up: %v, %t, %v, want %v", got, ok, err, want)
				}
				testkit.Succeed(t, netstat.Flush(ns))
				if got, ok, err := netstat.Lookup(ns, want.Proto, want.Orig); err != nil || ok {
					t.Errorf("look-up after the table was emptied: %v, %t, %v", got, ok, err)
				}
				none := netstat.Tuple{Src: server, Dst: client}
				if got, ok, err := netstat.Lookup(ns, want.Proto, none); err != nil || ok && got.Orig == want.Orig {
					t.Errorf("look-up of %v: %v, %t, %v", none, got, ok, err)
				}
			})
		}
	}
}

// trackConnections adds a rule that needs connection tracking.
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
