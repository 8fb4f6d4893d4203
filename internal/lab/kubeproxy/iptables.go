// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/coreos/go-iptables/iptables"

	"mustang/internal/netns"
	"mustang/internal/service"
)

// WriteIPTables writes the rules of kube-proxy's iptables mode (Kubernetes 1.29 and
// later, pkg/proxy/iptables) into the network namespace of a host.
func (r Rules) WriteIPTables(host *netns.Namespace) error {
	for _, family := range []struct {
		protocol iptables.Protocol
		v4       bool
	}{{iptables.ProtocolIPv4, true}, {iptables.ProtocolIPv6, false}} {
		err := host.Do(func() error {
			ipt, err := iptables.New(iptables.IPFamily(family.protocol))
			if err != nil {
				return err
			}
			return r.iptablesFamily(ipt, family.v4)
		})
		if err != nil {
			return fmt.Errorf("kube-proxy rules with iptables: %w", err)
		}
	}
	return nil
}

// iptablesRule is one rule of a chain.
type iptablesRule struct {
	table, chain string
	spec         []string
}

func (r Rules) iptablesFamily(ipt *iptables.IPTables, v4 bool) error {
	services, pods := r.family(v4)
	rules := iptablesBase()
	for _, s := range services {
		for _, protocol := range s.Protocol.Each() {
			rules = append(rules, r.iptablesService(s, protocol.String(), pods)...)
		}
	}
	rules = append(rules, iptablesRule{"nat", "KUBE-SERVICES", []string{"-m", "addrtype", "--dst-type", "LOCAL", "-j", "KUBE-NODEPORTS"}})
	made := map[[2]string]bool{{"nat", "PREROUTING"}: true, {"nat", "OUTPUT"}: true, {"nat", "POSTROUTING"}: true, {"filter", "FORWARD"}: true}
	for _, chain := range [][2]string{{"nat", "KUBE-NODEPORTS"}, {"nat", "KUBE-SERVICES"}, {"nat", "KUBE-MARK-MASQ"}, {"nat", "KUBE-POSTROUTING"}, {"filter", "KUBE-FORWARD"}} {
		made[chain] = true
		if err := ipt.NewChain(chain[0], chain[1]); err != nil {
			return err
		}
	}
	for _, rule := range rules {
		chain := [2]string{rule.table, rule.chain}
		if !made[chain] {
			if err := ipt.NewChain(rule.table, rule.chain); err != nil {
				return err
			}
			made[chain] = true
		}
	}
	for _, rule := range rules {
		if err := ipt.Append(rule.table, rule.chain, rule.spec...); err != nil {
			return err
		}
	}
	return nil
}

// iptablesBase returns the rules that every node has.
func iptablesBase() []iptablesRule {
	mark := masqueradeMark + "/" + masqueradeMark
	return []iptablesRule{
		{"nat", "PREROUTING", []string{"-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES"}},
		{"nat", "OUTPUT", []string{"-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES"}},
		{"nat", "POSTROUTING", []string{"-m", "comment", "--comment", "kubernetes postrouting rules", "-j", "KUBE-POSTROUTING"}},
		{"nat", "KUBE-MARK-MASQ", []string{"-j", "MARK", "--or-mark", masqueradeMark}},
		{"nat", "KUBE-POSTROUTING", []string{"-m", "mark", "!", "--mark", mark, "-j", "RETURN"}},
		{"nat", "KUBE-POSTROUTING", []string{"-j", "MARK", "--xor-mark", masqueradeMark}},
		{"nat", "KUBE-POSTROUTING", []string{"-j", "MASQUERADE", "--random-fully"}},
		{"filter", "FORWARD", []string{"-m", "comment", "--comment", "kubernetes forwarding rules", "-j", "KUBE-FORWARD"}},
		{"filter", "KUBE-FORWARD", []string{"-m", "mark", "--mark", mark, "-j", "ACCEPT"}},
		{"filter", "KUBE-FORWARD", []string{"-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"}},
	}
}

// iptablesService returns the rules of one service and protocol.
func (r Rules) iptablesService(s service.Service, protocol string, pods netip.Prefix) []iptablesRule {
	address, port := s.Frontend.Addr().String(), strconv.Itoa(int(s.Frontend.Port()))
	chain := "KUBE-SVC-" + hash(serviceName, protocol, s.Frontend.String())
	match := []string{"-d", address, "-p", protocol, "-m", protocol, "--dport", port}
	rules := []iptablesRule{{"nat", "KUBE-SERVICES", join(match, "-m", "comment", "--comment", serviceName+" cluster IP", "-j", chain)}}
	if r.MasqueradeAll {
		rules = append(rules, iptablesRule{"nat", chain, join(match, "-j", "KUBE-MARK-MASQ")})
	} else {
		rules = append(rules, iptablesRule{"nat", chain, join([]string{"!", "-s", pods.String()}, join(match, "-j", "KUBE-MARK-MASQ")...)})
	}
	for i, b := range s.Backends {
		backend := b.Addr
		endpoint := "KUBE-SEP-" + hash(serviceName, protocol, backend.String())
		var choose []string
		if left := len(s.Backends) - i; left > 1 {
			choose = []string{"-m", "statistic", "--mode", "random", "--probability", fmt.Sprintf("%.10f", 1/float64(left))}
		}
		rules = append(rules,
			iptablesRule{"nat", chain, join(choose, "-m", "comment", "--comment", serviceName+" -> "+backend.String(), "-j", endpoint)},
			iptablesRule{"nat", endpoint, []string{"-s", backend.Addr().String(), "-j", "KUBE-MARK-MASQ"}},
			iptablesRule{"nat", endpoint, []string{"-p", protocol, "-m", protocol, "-j", "DNAT", "--to-destination", backend.String()}},
		)
	}
	return rules
}

// join returns a new slice with the elements of first and rest.
func join(first []string, rest ...string) []string {
	return append(append([]string{}, first...), rest...)
}
