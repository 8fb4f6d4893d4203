// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
)

// nftablesTable is kube-proxy's table.
const nftablesTable = "kube-proxy"

// writeNFTables writes one transaction of kube-proxy's nftables mode (pkg/proxy/nftables). After a change it lists, as
// kube-proxy does, all chains and sets first, and writes those of the services that have changed. Chains of endpoints that
// are gone are flushed and stay, which kube-proxy deletes a second later.
func writeNFTables(ctx context.Context, s proxySync) error {
	var chains []string
	if !s.full() {
		var err error
		if chains, err = listNames(ctx, s.ip, "chain"); err != nil {
			return err
		}
		if _, err := listNames(ctx, s.ip, "set"); err != nil {
			return err
		}
	}
	return feed(s.nftables(chains), "nft", "-f", "-")
}

// clearNFTables deletes the tables.
func clearNFTables(context.Context) error {
	var text string
	for _, ip := range []string{"ip", "ip6"} {
		text += fmt.Sprintf("add table %s %s\ndelete table %[1]s %[2]s\n", ip, nftablesTable)
	}
	return feed(text, "nft", "-f", "-")
}

// listNames returns the names of kube-proxy's chains or sets. It asks as knftables 0.0.17 does, which kube-proxy 1.34 has: the
// List of later versions reads the whole table, which takes ten times as long.
func listNames(ctx context.Context, ip, kind string) (names []string, err error) {
	text, err := exec.CommandContext(ctx, "nft", "--json", "list", kind+"s", ip).Output()
	if err != nil {
		return nil, fmt.Errorf("nft list %ss: %w", kind, err)
	}
	var listed struct {
		Objects []map[string]map[string]any `json:"nftables"`
	}
	if err := json.Unmarshal(text, &listed); err != nil {
		return nil, fmt.Errorf("nft list %ss: %w", kind, err)
	}
	for _, object := range listed.Objects {
		if name, ok := object[kind]["name"].(string); ok && object[kind]["table"] == nftablesTable {
			names = append(names, name)
		}
	}
	return names, nil
}

// nftablesBase are the chains, maps and sets that every node has. "add " begins each line, and "@ip", "@address" and "@local"
// stand for words of the address family.
const nftablesBase = `table @ip kube-proxy { comment "rules for kube-proxy" ; }
chain @ip kube-proxy cluster-ips-check
chain @ip kube-proxy firewall-check
chain @ip kube-proxy mark-for-masquerade
chain @ip kube-proxy masquerading
chain @ip kube-proxy nodeport-endpoints-check
chain @ip kube-proxy reject-chain
chain @ip kube-proxy services
chain @ip kube-proxy service-endpoints-check
set @ip kube-proxy cluster-ips { type @address ; comment "Active ClusterIPs" ; }
map @ip kube-proxy firewall-ips { type @address . inet_proto . inet_service : verdict ; }
map @ip kube-proxy no-endpoint-nodeports { type inet_proto . inet_service : verdict ; }
map @ip kube-proxy no-endpoint-services { type @address . inet_proto . inet_service : verdict ; }
map @ip kube-proxy service-ips { type @address . inet_proto . inet_service : verdict ; }
map @ip kube-proxy service-nodeports { type inet_proto . inet_service : verdict ; }
chain @ip kube-proxy filter-prerouting-pre-dnat { type filter hook prerouting priority -110 ; }
rule @ip kube-proxy filter-prerouting-pre-dnat ct state new jump firewall-check
chain @ip kube-proxy filter-output-pre-dnat { type filter hook output priority -110 ; }
rule @ip kube-proxy filter-output-pre-dnat ct state new jump firewall-check
chain @ip kube-proxy filter-input { type filter hook input priority 0 ; }
rule @ip kube-proxy filter-input ct state new jump nodeport-endpoints-check
rule @ip kube-proxy filter-input ct state new jump service-endpoints-check
chain @ip kube-proxy filter-forward { type filter hook forward priority 0 ; }
rule @ip kube-proxy filter-forward ct state new jump service-endpoints-check
rule @ip kube-proxy filter-forward ct state new jump cluster-ips-check
chain @ip kube-proxy filter-output { type filter hook output priority 0 ; }
rule @ip kube-proxy filter-output ct state new jump service-endpoints-check
rule @ip kube-proxy filter-output ct state new jump cluster-ips-check
chain @ip kube-proxy nat-prerouting { type nat hook prerouting priority -100 ; }
rule @ip kube-proxy nat-prerouting jump services
chain @ip kube-proxy nat-output { type nat hook output priority -100 ; }
rule @ip kube-proxy nat-output jump services
chain @ip kube-proxy nat-postrouting { type nat hook postrouting priority 100 ; }
rule @ip kube-proxy nat-postrouting jump masquerading
rule @ip kube-proxy mark-for-masquerade mark set mark or ` + masqueradeMark + `
rule @ip kube-proxy masquerading mark and ` + masqueradeMark + ` == 0 return
rule @ip kube-proxy masquerading mark set mark xor ` + masqueradeMark + `
rule @ip kube-proxy masquerading masquerade fully-random
rule @ip kube-proxy cluster-ips-check @ip daddr @cluster-ips reject
rule @ip kube-proxy reject-chain reject
rule @ip kube-proxy service-endpoints-check @ip daddr . meta l4proto . th dport vmap @no-endpoint-services
rule @ip kube-proxy nodeport-endpoints-check @ip daddr != @local meta l4proto . th dport vmap @no-endpoint-nodeports
rule @ip kube-proxy firewall-check @ip daddr . meta l4proto . th dport vmap @firewall-ips
rule @ip kube-proxy services @ip daddr . meta l4proto . th dport vmap @service-ips
rule @ip kube-proxy services fib daddr type local @ip daddr != @local meta l4proto . th dport vmap @service-nodeports
`

// chainName returns the name of a chain, which begins with its kind and a hash of the rest.
func chainName(kind, rest string) string { return kind + "-" + hash(rest, 8) + "-" + rest }

// nftablesChains returns the names of the chains of a port and of its endpoints.
func (p servicePort) nftablesChains() (chain string, endpoints []string) {
	name := strings.Join([]string{p.namespace, p.name, p.protocol, p.port}, "/")
	for _, b := range p.backends {
		address := strings.ReplaceAll(b.Addr().String(), ":", ".")
		endpoints = append(endpoints, chainName("endpoint", fmt.Sprintf("%s__%s/%d", name, address, b.Port())))
	}
	return chainName("service", name), endpoints
}

// nftables returns the transaction, for a host with these chains: the chains of the ports that it writes, in a full sync with
// the elements that lead to them. It empties chains of services and endpoints that are gone.
func (s proxySync) nftables(chains []string) string {
	var text strings.Builder
	line := func(verb, kind, format string, args ...any) {
		fmt.Fprintf(&text, "%s %s %s %s %s\n", verb, kind, s.ip, nftablesTable, fmt.Sprintf(format, args...))
	}
	if s.full() {
		address, local := "ipv6_addr", netip.IPv6Loopback().String()
		if s.v4 {
			address, local = "ipv4_addr", "127.0.0.0/8"
		}
		words := strings.NewReplacer("@ip ", s.ip+" ", "@address", address, "@local", local)
		for rule := range strings.Lines(nftablesBase) {
			text.WriteString("add " + words.Replace(rule))
		}
	}
	from := s.ip + " saddr != " + s.pods.String() + " "
	if s.masqueradeAll {
		from = ""
	}
	active := map[string]bool{}
	for _, p := range s.ports {
		chain, endpoints := p.nftablesChains()
		for _, name := range append([]string{chain}, endpoints...) {
			active[name] = true
		}
		if !s.writes(p) {
			continue
		}
		line("add", "chain", "%s", chain)
		line("flush", "chain", "%s", chain)
		addr := p.frontend.Addr()
		if s.full() {
			line("add", "element", "cluster-ips { %s }", addr)
			line("add", "element", "service-ips { %s . %s . %d : goto %s }", addr, p.protocol, p.frontend.Port(), chain)
		}
		line("add", "rule", "%s %s daddr %s %sjump mark-for-masquerade", chain, s.ip, addr, from)
		var choices []string
		for i, b := range p.backends {
			line("add", "chain", "%s", endpoints[i])
			line("flush", "chain", "%s", endpoints[i])
			line("add", "rule", "%s %s saddr %s jump mark-for-masquerade", endpoints[i], s.ip, b.Addr())
			line("add", "rule", "%s meta l4proto %s dnat to %s", endpoints[i], p.protocol, b)
			choices = append(choices, fmt.Sprintf("%d : goto %s", i, endpoints[i]))
		}
		line("add", "rule", "%s numgen random mod %d vmap { %s }", chain, len(choices), strings.Join(choices, " , "))
	}
	for _, chain := range chains {
		ours := strings.HasPrefix(chain, "service-") && strings.Contains(chain, "/") || strings.HasPrefix(chain, "endpoint-")
		if ours && !active[chain] {
			line("flush", "chain", "%s", chain)
		}
	}
	return text.String()
}
