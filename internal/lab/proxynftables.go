// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"
)

const nftablesTable = "kube-proxy"

// nftables writes one transaction as kube-proxy's nftables mode does (pkg/proxy/nftables), in the thread's
// namespace. After a change it lists all chains and sets first, and writes only the changed services. Chains of
// removed endpoints are flushed and stay; kube-proxy deletes them a second later.
func (s proxySync) nftables(ctx context.Context, nft knftables.Interface) error {
	var chains []string
	if !s.full {
		var err error
		if chains, err = listNames(ctx, string(s.nft), "chain"); err != nil {
			return err
		}
		if _, err := listNames(ctx, string(s.nft), "set"); err != nil {
			return err
		}
	}
	tx := nft.NewTransaction()
	s.fill(tx, chains)
	return nft.Run(ctx, tx)
}

// listNames returns the names of kube-proxy's chains or sets. It uses the query of knftables 0.0.17, which
// kube-proxy 1.34 has: the List of later versions reads the whole table, which takes ten times as long.
func listNames(ctx context.Context, family, kind string) (names []string, err error) {
	var listed struct {
		Objects []map[string]map[string]any `json:"nftables"`
	}
	text, err := exec.CommandContext(ctx, "nft", "--json", "list", kind+"s", family).Output()
	if err == nil {
		err = json.Unmarshal(text, &listed)
	}
	if err != nil {
		return nil, fmt.Errorf("nft list %ss: %w", kind, err)
	}
	for _, object := range listed.Objects {
		if name, ok := object[kind]["name"].(string); ok && object[kind]["table"] == nftablesTable {
			names = append(names, name)
		}
	}
	return names, nil
}

type nftablesTx struct {
	proxySync
	*knftables.Transaction
}

func (s proxySync) fill(tx *knftables.Transaction, chains []string) {
	n := nftablesTx{s, tx}
	if s.full {
		n.base()
	}
	active := map[string]bool{} // chains of services and endpoints
	for _, p := range s.ports {
		chain := chainName("service", p.nftablesName())
		active[chain] = true
		for _, b := range p.backends {
			active[chainName("endpoint", p.endpointName(b))] = true
		}
		if s.changed(p) {
			n.port(p, chain)
		}
	}
	for _, chain := range chains { // of services and endpoints that are gone
		ours := strings.HasPrefix(chain, "service-") && strings.Contains(chain, "/") || strings.HasPrefix(chain, "endpoint-")
		if ours && !active[chain] {
			tx.Flush(&knftables.Chain{Name: chain})
		}
	}
}

// nftablesHooks are the chains at the kernel's hooks, with the rules that lead from them.
var nftablesHooks = []struct {
	name     string
	kind     knftables.BaseChainType
	hook     knftables.BaseChainHook
	priority knftables.BaseChainPriority
	rules    []string
}{
	{"filter-prerouting-pre-dnat", knftables.FilterType, knftables.PreroutingHook, knftables.DNATPriority + "-10",
		[]string{"ct state new jump firewall-check"}},
	{"filter-output-pre-dnat", knftables.FilterType, knftables.OutputHook, knftables.DNATPriority + "-10",
		[]string{"ct state new jump firewall-check"}},
	{"filter-input", knftables.FilterType, knftables.InputHook, knftables.FilterPriority,
		[]string{"ct state new jump nodeport-endpoints-check", "ct state new jump service-endpoints-check"}},
	{"filter-forward", knftables.FilterType, knftables.ForwardHook, knftables.FilterPriority,
		[]string{"ct state new jump service-endpoints-check", "ct state new jump cluster-ips-check"}},
	{"filter-output", knftables.FilterType, knftables.OutputHook, knftables.FilterPriority,
		[]string{"ct state new jump service-endpoints-check", "ct state new jump cluster-ips-check"}},
	{"nat-prerouting", knftables.NATType, knftables.PreroutingHook, knftables.DNATPriority, []string{"jump services"}},
	{"nat-output", knftables.NATType, knftables.OutputHook, knftables.DNATPriority, []string{"jump services"}},
	{"nat-postrouting", knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority,
		[]string{"jump masquerading"}},
}

func (n nftablesTx) base() {
	address, ip := n.addressType, string(n.nft)
	notLocalhost := ip + " daddr != " + n.localhost
	n.Add(&knftables.Table{Comment: knftables.PtrTo("rules for kube-proxy")})
	for _, chain := range []string{
		"cluster-ips-check", "firewall-check", "mark-for-masquerade", "masquerading", "nodeport-endpoints-check",
		"reject-chain", "services", "service-endpoints-check",
	} {
		n.Add(&knftables.Chain{Name: chain})
	}
	n.Add(&knftables.Set{Name: "cluster-ips", Type: address, Comment: knftables.PtrTo("Active ClusterIPs")})
	const port, verdict = "inet_proto . inet_service", " : verdict"
	for name, kind := range map[string]string{
		"firewall-ips": address + " . " + port, "no-endpoint-services": address + " . " + port,
		"service-ips": address + " . " + port, "no-endpoint-nodeports": port, "service-nodeports": port,
	} {
		n.Add(&knftables.Map{Name: name, Type: kind + verdict})
	}
	for _, h := range nftablesHooks {
		n.Add(&knftables.Chain{
			Name: h.name, Type: knftables.PtrTo(h.kind), Hook: knftables.PtrTo(h.hook), Priority: knftables.PtrTo(h.priority),
		})
		for _, rule := range h.rules {
			n.rule(h.name, rule)
		}
	}
	lookup := ip + " daddr . meta l4proto . th dport vmap @"
	for _, rule := range [][2]string{
		{"mark-for-masquerade", "mark set mark or " + masqueradeMark},
		{"masquerading", "mark and " + masqueradeMark + " == 0 return"},
		{"masquerading", "mark set mark xor " + masqueradeMark},
		{"masquerading", "masquerade fully-random"},
		{"cluster-ips-check", ip + " daddr @cluster-ips reject"},
		{"reject-chain", "reject"},
		{"service-endpoints-check", lookup + "no-endpoint-services"},
		{"nodeport-endpoints-check", notLocalhost + " meta l4proto . th dport vmap @no-endpoint-nodeports"},
		{"firewall-check", lookup + "firewall-ips"},
		{"services", lookup + "service-ips"},
		{"services", "fib daddr type local " + notLocalhost + " meta l4proto . th dport vmap @service-nodeports"},
	} {
		n.rule(rule[0], rule[1])
	}
}

func chainName(kind, rest string) string { return kind + "-" + hash(rest, 8) + "-" + rest }

func (p servicePort) nftablesName() string {
	return strings.Join([]string{p.namespace, p.name, p.protocol, p.port}, "/")
}

func (p servicePort) endpointName(b netip.AddrPort) string {
	return fmt.Sprintf("%s__%s/%d", p.nftablesName(), strings.ReplaceAll(b.Addr().String(), ":", "."), b.Port())
}

func (n nftablesTx) chain(name string) {
	n.Add(&knftables.Chain{Name: name})
	n.Flush(&knftables.Chain{Name: name})
}

// port writes the rules of a port, the chains of its endpoints, and the elements that lead to new chains.
func (n nftablesTx) port(p servicePort, chain string) {
	n.chain(chain)
	address, ip, from := p.frontend.Addr().String(), string(n.nft), ""
	if n.full {
		n.Add(&knftables.Element{Set: "cluster-ips", Key: []string{address}})
		n.Add(&knftables.Element{
			Map: "service-ips", Key: []string{address, p.protocol, strconv.Itoa(int(p.frontend.Port()))},
			Value: []string{"goto " + chain},
		})
	}
	if !n.masqueradeAll {
		from = ip + " saddr != " + n.pods.String()
	}
	n.rule(chain, ip, "daddr", address, from, "jump mark-for-masquerade")
	var choices []string
	for i, b := range p.backends {
		endpoint := chainName("endpoint", p.endpointName(b))
		n.chain(endpoint)
		n.rule(endpoint, ip, "saddr", b.Addr(), "jump mark-for-masquerade")
		n.rule(endpoint, "meta l4proto", p.protocol, "dnat to", b.String())
		choices = append(choices, fmt.Sprintf("%d : goto %s", i, endpoint))
	}
	n.rule(chain, fmt.Sprintf("numgen random mod %d vmap { %s }", len(choices), strings.Join(choices, " , ")))
}

func (n nftablesTx) rule(chain string, parts ...any) {
	n.Add(&knftables.Rule{Chain: chain, Rule: knftables.Concat(parts...)})
}
