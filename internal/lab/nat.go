// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/knftables"

	"mustang/internal/nl"
)

// masquerade hides a host's pods behind its own address towards the wire.
func masquerade(ctx context.Context, host *nl.Namespace, pods []netip.Prefix) error {
	for _, prefix := range pods {
		family := knftables.IPv6Family
		if prefix.Addr().Is4() {
			family = knftables.IPv4Family
		}
		err := host.Do(func() error {
			nft, err := knftables.New(family, "mustang-nat")
			if err != nil {
				return err
			}
			tx := nft.NewTransaction()
			tx.Add(&knftables.Table{})
			tx.Add(&knftables.Chain{
				Name: "postrouting", Type: knftables.PtrTo(knftables.NATType),
				Hook: knftables.PtrTo(knftables.PostroutingHook), Priority: knftables.PtrTo(knftables.SNATPriority),
			})
			tx.Add(&knftables.Rule{Chain: "postrouting", Rule: knftables.Concat(
				string(family), "saddr", prefix.String(), "oifname", Uplink, "masquerade")})
			return nft.Run(ctx, tx)
		})
		if err != nil {
			return fmt.Errorf("masquerade %v in %q: %w", prefix, host.Name(), err)
		}
	}
	return nil
}
