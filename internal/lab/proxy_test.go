// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// svc1 is a service of kube-proxy's own tests (pkg/proxy/iptables and pkg/proxy/nftables of
// Kubernetes 1.34), with a second endpoint.
var svc1 = servicePort{
	namespace: "ns1", name: "svc1", port: "p80", protocol: "tcp", frontend: netip.MustParseAddrPort("10.20.30.41:80"),
	backends: []netip.AddrPort{netip.MustParseAddrPort("10.180.0.1:80"), netip.MustParseAddrPort("10.180.0.2:80")},
}

func unchanged(servicePort) bool { return false }
func changed(servicePort) bool   { return true }

// checkLines checks that a text has lines, in this order.
func checkLines(t *testing.T, text string, want ...string) {
	t.Helper()
	lines := strings.Split(text, "\n")
	for _, line := range want {
		i := slices.Index(lines, line)
		testkit.Require(t, i >= 0, "no line %q, or too early, in:\n%s", line, text)
		lines = lines[i+1:]
	}
}

// TestIPTablesRulesAreKubeProxys compares with the lines of TestOverallIPTablesRules.
func TestIPTablesRulesAreKubeProxys(t *testing.T) {
	pods := netip.MustParsePrefix("10.0.0.0/8")
	s := proxySync{family: families[0], full: true, ports: []servicePort{svc1}, pods: pods, changed: changed}
	checkLines(t, s.iptablesText(),
		"*nat",
		":KUBE-SERVICES - [0:0]",
		":KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]",
		":KUBE-SEP-SXIVWICOYRO3J4NJ - [0:0]",
		`-A KUBE-SERVICES -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp -p tcp -d 10.20.30.41 --dport 80 -j `+
			`KUBE-SVC-XPGD46QRK7WJZT7O`,
		`-A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp -p tcp -d 10.20.30.41 --dport `+
			`80 ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ`,
		`-A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -m statistic --mode random `+
			`--probability 0.5000000000 -j KUBE-SEP-SXIVWICOYRO3J4NJ`,
		`-A KUBE-SEP-SXIVWICOYRO3J4NJ -m comment --comment ns1/svc1:p80 -s 10.180.0.1 -j KUBE-MARK-MASQ`,
		`-A KUBE-SEP-SXIVWICOYRO3J4NJ -m comment --comment ns1/svc1:p80 -m tcp -p tcp -j DNAT --to-destination 10.180.0.1:80`,
		"COMMIT")
}

// TestIPTablesLeavesOutWhatKubeProxyDoes checks a partial sync, and a large cluster.
func TestIPTablesLeavesOutWhatKubeProxyDoes(t *testing.T) {
	s := proxySync{family: families[0], ports: []servicePort{svc1}, changed: unchanged}
	text := s.iptablesText()
	checkLines(t, text, `-A KUBE-SERVICES -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp -p tcp -d 10.20.30.41 `+
		`--dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O`)
	for _, absent := range []string{":KUBE-SVC-", "KUBE-SEP-", "-A FORWARD"} {
		testkit.Check(t, !strings.Contains(text, absent), "a partial sync without changes has %q:\n%s", absent, text)
	}
	s.changed, s.full = changed, true
	for range largeCluster/2 + 1 {
		s.ports = append(s.ports, svc1)
	}
	if text := s.iptablesText(); strings.Contains(text, "->") || !strings.Contains(text, `"ns1/svc1:p80 cluster IP"`) {
		t.Error("in a large cluster only the cluster IP has a comment")
	}
}

// TestNFTablesRulesAreKubeProxys compares with the lines of TestOverallNFTablesRules.
func TestNFTablesRulesAreKubeProxys(t *testing.T) {
	nft := knftables.NewFake(knftables.IPv4Family, nftablesTable)
	one := svc1
	one.backends = one.backends[:1]
	s := proxySync{family: families[0], full: true, ports: []servicePort{one}, pods: netip.MustParsePrefix("10.0.0.0/8"),
		changed: changed}
	tx := nft.NewTransaction()
	s.fill(tx, nil)
	testkit.Succeed(t, nft.Run(context.Background(), tx))
	dump := nft.Dump()
	const svc, ep = "service-ULMVA6XW-ns1/svc1/tcp/p80", "endpoint-5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80"
	for _, line := range []string{
		"add chain ip kube-proxy " + svc,
		"add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -100 ; }",
		"add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips",
		"add rule ip kube-proxy filter-forward ct state new jump cluster-ips-check",
		"add rule ip kube-proxy " + svc + " ip daddr 10.20.30.41 ip saddr != 10.0.0.0/8 jump mark-for-masquerade",
		"add rule ip kube-proxy " + svc + " numgen random mod 1 vmap { 0 : goto " + ep + " }",
		"add rule ip kube-proxy " + ep + " ip saddr 10.180.0.1 jump mark-for-masquerade",
		"add rule ip kube-proxy " + ep + " meta l4proto tcp dnat to 10.180.0.1:80",
		"add element ip kube-proxy cluster-ips { 10.20.30.41 }",
		"add element ip kube-proxy service-ips { 10.20.30.41 . tcp . 80 : goto " + svc + " }",
	} {
		testkit.Check(t, strings.Contains(dump, line+"\n"), "no line %q in:\n%s", line, dump)
	}
}

// TestNFTablesPartialSync changes the endpoint of one service of two, and leaves the other's chains alone.
func TestNFTablesPartialSync(t *testing.T) {
	ctx := context.Background()
	nft := knftables.NewFake(knftables.IPv4Family, nftablesTable)
	r := proxyRules{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	for _, frontend := range []string{"10.96.0.1:80", "10.96.0.2:80"} {
		r.Services = append(r.Services, service.Service{
			Frontend: netip.MustParseAddrPort(frontend), Protocol: service.TCP,
			Backends: service.Backends(netip.MustParseAddrPort("10.1.0.1:80")),
		})
	}
	run := func(keys ...service.Key) string {
		s, _ := newProxySync(r, families[0], keys)
		var chains []string
		if !s.full {
			chains, _ = nft.List(ctx, "chain")
		}
		tx := nft.NewTransaction()
		s.fill(tx, chains)
		testkit.Succeed(t, nft.Run(ctx, tx))
		return tx.String()
	}
	run()
	r.Services[1].Backends = service.Backends(netip.MustParseAddrPort("10.1.0.9:80"))
	tx := run(service.Key{Frontend: r.Services[1].Frontend, Protocol: service.TCP})
	testkit.Check(t, !strings.Contains(tx, "mustang-10-96-0-1/"), "the unchanged service is in the transaction:\n%s", tx)
	if dump := nft.Dump(); !strings.Contains(dump, "dnat to 10.1.0.9:80") ||
		strings.Count(dump, "dnat to 10.1.0.1:80") != 1 {
		t.Errorf("want the new endpoint, and the old one emptied:\n%s", dump)
	}
}

// TestIPVSRulesAreKubeProxys has the lines that kube-proxy's ipvs mode writes for cluster IPs.
func TestIPVSRulesAreKubeProxys(t *testing.T) {
	s := proxySync{family: families[0], pods: netip.MustParsePrefix("10.0.0.0/8")}
	const purpose = `-m comment --comment "Kubernetes service cluster ip + port for masquerade purpose"`
	checkLines(t, s.ipvsText(true),
		"*nat",
		":KUBE-SERVICES - [0:0]",
		"-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN",
		"-A KUBE-SERVICES "+purpose+" -m set --match-set KUBE-CLUSTER-IP dst,dst ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ",
		"-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT",
		"-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT",
		`-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`,
		"COMMIT")
	text := s.ipvsText(false)
	testkit.Check(t, !strings.Contains(text, "PREROUTING"), "a later sync jumps twice:\n%s", text)
}
