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

	"mustang/internal/netns"
	"mustang/internal/service"
)

// nftablesTable is kube-proxy's table.
const nftablesTable = "kube-proxy"

// nftablesProxy is kube-proxy's nftables mode (pkg/proxy/nftables): its table of each address family in a host. Like
// kube-proxy it finds out once what the program nft can do.
type nftablesProxy struct {
	host     *netns.Namespace
	families map[knftables.Family]knftables.Interface
}

func openNFTables(host *netns.Namespace) (*nftablesProxy, error) {
	n := &nftablesProxy{host: host, families: map[knftables.Family]knftables.Interface{}}
	for _, family := range []knftables.Family{knftables.IPv4Family, knftables.IPv6Family} {
		err := host.Do(func() (err error) {
			n.families[family], err = knftables.New(family, nftablesTable)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("kube-proxy rules with nftables: %w", err)
		}
	}
	return n, nil
}

// Write writes one transaction for each address family. After a change it lists, as kube-proxy does, all chains and
// sets first, and writes those of the services that have changed. Chains of endpoints that are gone are flushed and
// stay, which kube-proxy deletes a second later.
func (n *nftablesProxy) Write(ctx context.Context, r proxyRules, changed ...service.Key) error {
	full := len(changed) == 0
	return n.each(func(nft knftables.Interface, family knftables.Family) (err error) {
		v4 := family == knftables.IPv4Family
		if !full && !anyOf(changed, v4) {
			return nil
		}
		services, pods := r.family(v4)
		s := nftablesSync{tx: nft.NewTransaction(), ip: string(family), pods: pods, masqueradeAll: r.MasqueradeAll}
		var chains []string
		if full {
			s.base()
		} else if chains, err = listNames(ctx, family, "chain"); err != nil {
			return err
		} else if _, err := listNames(ctx, family, "set"); err != nil {
			return err
		}
		s.services(portsOf(services), changedSet(changed), full)
		s.flushStale(chains)
		return nft.Run(ctx, s.tx)
	})
}

// Clear deletes the tables.
func (n *nftablesProxy) Clear(ctx context.Context) error {
	return n.each(func(nft knftables.Interface, _ knftables.Family) error {
		tx := nft.NewTransaction()
		tx.Add(&knftables.Table{})
		tx.Delete(&knftables.Table{})
		return nft.Run(ctx, tx)
	})
}

// each calls do in the host for the table of each address family.
func (n *nftablesProxy) each(do func(knftables.Interface, knftables.Family) error) error {
	for family, nft := range n.families {
		if err := n.host.Do(func() error { return do(nft, family) }); err != nil {
			return fmt.Errorf("kube-proxy rules with nftables: %w", err)
		}
	}
	return nil
}

// listNames returns the names of kube-proxy's chains or sets. It asks as knftables 0.0.17 does, which kube-proxy 1.34
// has: the List of later versions reads the whole table, which takes ten times as long.
func listNames(ctx context.Context, family knftables.Family, kind string) (names []string, err error) {
	text, err := exec.CommandContext(ctx, "nft", "--json", "list", kind+"s", string(family)).Output()
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

// nftablesSync is one transaction for one address family.
type nftablesSync struct {
	tx            *knftables.Transaction
	ip            string // "ip" or "ip6"
	pods          netip.Prefix
	masqueradeAll bool
	active        map[string]bool // chains of services and endpoints
}

// nftablesHooks are the chains at the kernel's hooks, with the rules that lead from them.
var nftablesHooks = []struct {
	name     string
	kind     knftables.BaseChainType
	hook     knftables.BaseChainHook
	priority knftables.BaseChainPriority
	rules    []string
}{
	{"filter-prerouting-pre-dnat", knftables.FilterType, knftables.PreroutingHook, knftables.DNATPriority +
		"-10", []string{"ct state new jump firewall-check"}},
	{"filter-output-pre-dnat", knftables.FilterType, knftables.OutputHook, knftables.DNATPriority +
		"-10", []string{"ct state new jump firewall-check"}},
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

// base adds the chains, maps and sets that every node has.
func (s *nftablesSync) base() {
	address, notLocalhost := "ipv4_addr", "ip daddr != 127.0.0.0/8"
	if s.ip == "ip6" {
		address, notLocalhost = "ipv6_addr", "ip6 daddr != ::1"
	}
	s.tx.Add(&knftables.Table{Comment: knftables.PtrTo("rules for kube-proxy")})
	for _, chain := range []string{
		"cluster-ips-check", "firewall-check", "mark-for-masquerade", "masquerading", "nodeport-endpoints-check",
		"reject-chain",
		"services", "service-endpoints-check",
	} {
		s.tx.Add(&knftables.Chain{Name: chain})
	}
	s.tx.Add(&knftables.Set{Name: "cluster-ips", Type: address, Comment: knftables.PtrTo("Active ClusterIPs")})
	const frontend = " . inet_proto . inet_service : verdict"
	for _, m := range [][2]string{
		{"firewall-ips", address + frontend}, {"no-endpoint-nodeports", "inet_proto . inet_service : verdict"},
		{"no-endpoint-services", address + frontend}, {"service-ips", address + frontend},
		{"service-nodeports", "inet_proto . inet_service : verdict"},
	} {
		s.tx.Add(&knftables.Map{Name: m[0], Type: m[1]})
	}
	for _, h := range nftablesHooks {
		s.tx.Add(&knftables.Chain{
			Name: h.name, Type: knftables.PtrTo(h.kind), Hook: knftables.PtrTo(h.hook), Priority: knftables.PtrTo(h.priority),
		})
		for _, rule := range h.rules {
			s.tx.Add(&knftables.Rule{Chain: h.name, Rule: rule})
		}
	}
	lookup := s.ip + " daddr . meta l4proto . th dport vmap @"
	for _, rule := range [][2]string{
		{"mark-for-masquerade", "mark set mark or " + masqueradeMark},
		{"masquerading", "mark and " + masqueradeMark + " == 0 return"},
		{"masquerading", "mark set mark xor " + masqueradeMark},
		{"masquerading", "masquerade fully-random"},
		{"cluster-ips-check", s.ip + " daddr @cluster-ips reject"},
		{"reject-chain", "reject"},
		{"service-endpoints-check", lookup + "no-endpoint-services"},
		{"nodeport-endpoints-check", notLocalhost + " meta l4proto . th dport vmap @no-endpoint-nodeports"},
		{"firewall-check", lookup + "firewall-ips"},
		{"services", lookup + "service-ips"},
		{"services", "fib daddr type local " + notLocalhost + " meta l4proto . th dport vmap @service-nodeports"},
	} {
		s.tx.Add(&knftables.Rule{Chain: rule[0], Rule: rule[1]})
	}
}

// chainName returns the name of a chain, which begins with its kind and a hash of the rest.
func chainName(kind, rest string) string { return kind + "-" + hash(rest, 8) + "-" + rest }

// nftablesName returns the name of a port in names of chains.
func (p servicePort) nftablesName() string {
	return strings.Join([]string{p.namespace, p.name, p.protocol, p.port}, "/")
}

// endpointName returns the name of an endpoint in the name of its chain.
func (p servicePort) endpointName(b netip.AddrPort) string {
	return fmt.Sprintf("%s__%s/%d", p.nftablesName(), strings.ReplaceAll(b.Addr().String(), ":", "."), b.Port())
}

// services writes the chains of the ports that have changed, and the elements that lead to them if those are new.
func (s *nftablesSync) services(ports []servicePort, changed func(servicePort) bool, fresh bool) {
	s.active = map[string]bool{}
	for _, p := range ports {
		chain := chainName("service", p.nftablesName())
		s.active[chain] = true
		for _, b := range p.backends {
			s.active[chainName("endpoint", p.endpointName(b))] = true
		}
		if !changed(p) {
			continue
		}
		s.chain(chain)
		if fresh {
			address := p.frontend.Addr().String()
			s.tx.Add(&knftables.Element{Set: "cluster-ips", Key: []string{address}})
			s.tx.Add(&knftables.Element{
				Map: "service-ips", Key: []string{address, p.protocol, strconv.Itoa(int(p.frontend.Port()))},
				Value: []string{"goto " + chain},
			})
		}
		s.port(p, chain)
	}
}

// chain adds an empty chain.
func (s *nftablesSync) chain(name string) {
	s.tx.Add(&knftables.Chain{Name: name})
	s.tx.Flush(&knftables.Chain{Name: name})
}

// port writes the rules of a port and the chains of its endpoints.
func (s *nftablesSync) port(p servicePort, chain string) {
	from := ""
	if !s.masqueradeAll {
		from = s.ip + " saddr != " + s.pods.String()
	}
	s.tx.Add(&knftables.Rule{Chain: chain, Rule: knftables.Concat(s.ip, "daddr", p.frontend.Addr(), from,
		"jump mark-for-masquerade")})
	var choices []string
	for i, b := range p.backends {
		endpoint := chainName("endpoint", p.endpointName(b))
		s.chain(endpoint)
		s.tx.Add(&knftables.Rule{Chain: endpoint, Rule: knftables.Concat(s.ip, "saddr", b.Addr(),
			"jump mark-for-masquerade")})
		s.tx.Add(&knftables.Rule{Chain: endpoint, Rule: knftables.Concat("meta l4proto", p.protocol, "dnat to", b.String())})
		choices = append(choices, fmt.Sprintf("%d : goto %s", i, endpoint))
	}
	s.tx.Add(&knftables.Rule{Chain: chain, Rule: fmt.Sprintf("numgen random mod %d vmap { %s }", len(choices),
		strings.Join(choices, " , "))})
}

// flushStale empties the chains of services and endpoints that are gone.
func (s *nftablesSync) flushStale(chains []string) {
	for _, chain := range chains {
		ours := strings.HasPrefix(chain, "service-") && strings.Contains(chain, "/") || strings.HasPrefix(chain, "endpoint-")
		if ours && !s.active[chain] {
			s.tx.Flush(&knftables.Chain{Name: chain})
		}
	}
}
