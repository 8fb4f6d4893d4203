// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"

	"mustang/internal/netns"
	"mustang/internal/service"
)

// WriteNFTables writes the rules of kube-proxy's nftables mode (Kubernetes 1.31 and
// later, pkg/proxy/nftables) into the network namespace of a host.
func (r Rules) WriteNFTables(ctx context.Context, host *netns.Namespace) error {
	for _, family := range []knftables.Family{knftables.IPv4Family, knftables.IPv6Family} {
		err := host.Do(func() error {
			nft, err := knftables.New(family, "kube-proxy")
			if err != nil {
				return err
			}
			tx := nft.NewTransaction()
			r.nftablesFamily(tx, family)
			return nft.Run(ctx, tx)
		})
		if err != nil {
			return fmt.Errorf("kube-proxy rules with nftables: %w", err)
		}
	}
	return nil
}

func (r Rules) nftablesFamily(tx *knftables.Transaction, family knftables.Family) {
	services, pods := r.family(family == knftables.IPv4Family)
	addressType := "ipv6_addr"
	if family == knftables.IPv4Family {
		addressType = "ipv4_addr"
	}
	tx.Add(&knftables.Table{})
	nftablesBase(tx, string(family), addressType)
	for _, service := range services {
		for _, protocol := range service.Protocol.Each() {
			r.nftablesService(tx, nftablesTarget{service: service, protocol: protocol.String(), family: string(family), pods: pods.String()})
		}
	}
}

// nftablesBase adds the chains that every node has.
func nftablesBase(tx *knftables.Transaction, family, addressType string) {
	for _, chain := range []string{"mark-for-masquerade", "masquerading", "services"} {
		tx.Add(&knftables.Chain{Name: chain})
	}
	tx.Add(&knftables.Map{Name: "service-ips", Type: addressType + " . inet_proto . inet_service : verdict"})
	for _, hook := range []struct {
		name, jump string
		hook       knftables.BaseChainHook
		priority   knftables.BaseChainPriority
	}{
		{"nat-prerouting", "services", knftables.PreroutingHook, knftables.DNATPriority},
		{"nat-output", "services", knftables.OutputHook, knftables.BaseChainPriority("-100")},
		{"nat-postrouting", "masquerading", knftables.PostroutingHook, knftables.SNATPriority},
	} {
		tx.Add(&knftables.Chain{
			Name: hook.name, Type: knftables.PtrTo(knftables.NATType),
			Hook: knftables.PtrTo(hook.hook), Priority: knftables.PtrTo(hook.priority),
		})
		tx.Add(&knftables.Rule{Chain: hook.name, Rule: "jump " + hook.jump})
	}
	for _, rule := range [][2]string{
		{"mark-for-masquerade", "mark set mark or " + masqueradeMark},
		{"masquerading", "mark and " + masqueradeMark + " == 0 return"},
		{"masquerading", "mark set mark xor " + masqueradeMark},
		{"masquerading", "masquerade fully-random"},
		{"services", family + " daddr . meta l4proto . th dport vmap @service-ips"},
	} {
		tx.Add(&knftables.Rule{Chain: rule[0], Rule: rule[1]})
	}
}

// nftablesTarget is one service for one protocol.
type nftablesTarget struct {
	service                service.Service
	protocol, family, pods string
}

func (r Rules) nftablesService(tx *knftables.Transaction, t nftablesTarget) {
	address, port := t.service.Frontend.Addr().String(), strconv.Itoa(int(t.service.Frontend.Port()))
	chain := "service-" + hash(serviceName, t.protocol, t.service.Frontend.String())
	tx.Add(&knftables.Chain{Name: chain})
	tx.Add(&knftables.Element{Map: "service-ips", Key: []string{address, t.protocol, port}, Value: []string{"goto " + chain}})
	from := ""
	if !r.MasqueradeAll {
		from = t.family + " saddr != " + t.pods
	}
	tx.Add(&knftables.Rule{Chain: chain, Rule: knftables.Concat(
		t.family, "daddr", address, t.protocol, "dport", port, from, "jump mark-for-masquerade")})
	var choices []string
	for i, b := range t.service.Backends {
		backend := b.Addr
		endpoint := "endpoint-" + hash(serviceName, t.protocol, backend.String())
		choices = append(choices, fmt.Sprintf("%d : goto %s", i, endpoint))
		tx.Add(&knftables.Chain{Name: endpoint})
		tx.Add(&knftables.Rule{Chain: endpoint, Rule: knftables.Concat(t.family, "saddr", backend.Addr(), "jump mark-for-masquerade")})
		tx.Add(&knftables.Rule{Chain: endpoint, Rule: knftables.Concat("meta l4proto", t.protocol, "dnat to", backend.String())})
	}
	tx.Add(&knftables.Rule{Chain: chain, Rule: fmt.Sprintf("numgen random mod %d vmap { %s }", len(choices), strings.Join(choices, " , "))})
}
