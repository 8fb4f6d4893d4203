// SPDX-License-Identifier: Apache-2.0

// Package kubeproxy writes service rules as kube-proxy writes them, with iptables
// or nftables, into the network namespace of a host. Labs compare eBPF services
// with them. It also writes the masquerade rule of a host that does NAT for its pods.
package kubeproxy

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"

	"sigs.k8s.io/knftables"

	"mustang/internal/netns"
	"mustang/internal/service"
)

// Rules are the inputs of kube-proxy's rules.
type Rules struct {
	// Services are the services of both address families.
	Services []service.Service
	// PodCIDRs are the ranges of pod addresses, one per address family (kube-proxy's
	// --cluster-cidr).
	PodCIDRs []netip.Prefix
	// MasqueradeAll replaces the source address of every client with that of the host
	// (--masquerade-all). Links where replies would bypass the host need it.
	MasqueradeAll bool
}

// Marks and names that kube-proxy uses.
const (
	masqueradeMark = "0x4000"
	serviceName    = "default/mustang"
)

// family returns the services of one address family and the range of its pods.
func (r Rules) family(v4 bool) (services []service.Service, pods netip.Prefix) {
	for _, s := range r.Services {
		if s.Frontend.Addr().Is4() == v4 {
			services = append(services, s)
		}
	}
	for _, prefix := range r.PodCIDRs {
		if prefix.Addr().Is4() == v4 {
			pods = prefix
		}
	}
	return services, pods
}

// hash returns the suffix of a chain's name: the first 16 characters of a SHA-256 in
// base 32, as in kube-proxy.
func hash(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		h.Write([]byte(part))
	}
	return base32.StdEncoding.EncodeToString(h.Sum(nil))[:16]
}

// Masquerade replaces the source address of packets from pods with that of the host
// when they leave through a device (nftables, table mustang-nat).
func Masquerade(ctx context.Context, host *netns.Namespace, device string, pods []netip.Prefix) error {
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
				string(family), "saddr", prefix.String(), "oifname", device, "masquerade")})
			return nft.Run(ctx, tx)
		})
		if err != nil {
			return fmt.Errorf("masquerade %v in %q: %w", prefix, host.Name(), err)
		}
	}
	return nil
}
