// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"mustang/internal/netns"
)

const iptablesEmpty = "*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n" +
	"*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n"

const iptablesJumps = `*filter
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
COMMIT
*nat
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
COMMIT
`

// iptablesTop are the chains of each sync, and the rules of the filter table.
const iptablesTop = `*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark ` +
	masqueradeMark + `/` + masqueradeMark + ` -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
`

const iptablesMarks = `-A KUBE-POSTROUTING -m mark ! --mark ` + masqueradeMark + `/` + masqueradeMark + ` -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark ` + masqueradeMark + `
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark ` + masqueradeMark + `
`

// iptables writes the rules as kube-proxy's iptables mode does (pkg/proxy/iptables). After a change it writes the
// chain that names all services, and the chains of changed services.
func (s proxySync) iptables(host *netns.Namespace) error {
	if !s.full && !s.large() { // it looks for chains to delete
		if err := feed(host, "", s.program+"-save", "-t", "nat"); err != nil {
			return err
		}
	}
	return feed(host, s.iptablesText(), s.program+"-restore", "-w", "--noflush", "--counters")
}

// largeCluster is the number of endpoints above which kube-proxy leaves out comments, and looks for no old chains.
const largeCluster = 1000

func (s proxySync) large() bool {
	n := 0
	for _, p := range s.ports {
		n += len(p.backends)
	}
	return n > largeCluster
}

// iptablesText returns the input of iptables-restore, with the jumps if they are not there yet.
func (s proxySync) iptablesText() string {
	var rules bytes.Buffer
	var chains []string
	comments := !s.large()
	for _, p := range s.ports {
		match := fmt.Sprintf(`-m comment --comment "%s cluster IP" -m %s -p %[2]s -d %s --dport %d`, p, p.protocol,
			p.frontend.Addr(), p.frontend.Port())
		chain := p.iptablesChain()
		fmt.Fprintf(&rules, "-A KUBE-SERVICES %s -j %s\n", match, chain)
		if !s.changed(p) {
			continue
		}
		if !s.masqueradeAll {
			match += " ! -s " + s.pods.String()
		}
		fmt.Fprintf(&rules, "-A %s %s -j KUBE-MARK-MASQ\n", chain, match)
		chains = append(chains, chain)
		chains = append(chains, p.iptables(&rules, comments)...)
	}
	if s.sorted {
		slices.SortFunc(chains, func(a, b string) int { return strings.Compare(b, a) })
	}
	text := iptablesTop
	if len(chains) > 0 {
		text += ":" + strings.Join(chains, " - [0:0]\n:") + " - [0:0]\n"
	}
	text += iptablesMarks + rules.String() + `-A KUBE-SERVICES -m comment --comment ` +
		`"kubernetes service nodeports; NOTE: this must be the last rule in this chain" ` +
		"-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n"
	if s.full {
		text += iptablesJumps
	}
	return text
}

func (p servicePort) iptablesChain() string { return "KUBE-SVC-" + hash(p.String()+p.protocol, 16) }

func (p servicePort) iptables(rules *bytes.Buffer, comments bool) (chains []string) {
	chain := p.iptablesChain()
	for i, b := range p.backends {
		endpoint := "KUBE-SEP-" + hash(p.String()+p.protocol+b.String(), 16)
		choice, name := "", ""
		if comments {
			choice, name = fmt.Sprintf(` -m comment --comment "%s -> %s"`, p, b), fmt.Sprintf(" -m comment --comment %s", p)
		}
		if left := len(p.backends) - i; left > 1 {
			choice += fmt.Sprintf(" -m statistic --mode random --probability %.10f", 1/float64(left))
		}
		chains = append(chains, endpoint)
		fmt.Fprintf(rules, "-A %s%s -j %s\n", chain, choice, endpoint)
		fmt.Fprintf(rules, "-A %s%s -s %s -j KUBE-MARK-MASQ\n", endpoint, name, b.Addr())
		fmt.Fprintf(rules, "-A %s%s -m %s -p %[3]s -j DNAT --to-destination %s\n", endpoint, name, p.protocol, b)
	}
	return chains
}
