// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"mustang/internal/netns"
	"mustang/internal/service"
)

// proxyRules are the inputs of kube-proxy's rules.
type proxyRules struct {
	// Services are the services of both address families.
	Services []service.Service
	// PodCIDRs are the ranges of pod addresses, one per address family (kube-proxy's --cluster-cidr).
	PodCIDRs []netip.Prefix
	// MasqueradeAll replaces the source address of every client with that of the host (--masquerade-all). Links where
	// replies would bypass the host need it.
	MasqueradeAll bool
	// Sorted declares chains of iptables in the order that iptables-restore reads fastest, for which kube-proxy does not
	// care. The kernel has the same rules then.
	Sorted bool
}

// proxyModes are the modes of kube-proxy of Kubernetes 1.34, with which labs compare eBPF services. Their functions run in
// the network namespace of a host. clear removes what write wrote; those with iptables empty the nat and filter tables.
var proxyModes = map[string]struct {
	write func(context.Context, proxySync) error
	clear func(context.Context) error
}{
	ViaIPTables: {writeIPTables, clearIPTables},
	ViaNFTables: {writeNFTables, clearNFTables},
	ViaIPVS:     {writeIPVS, clearIPVS},
}

// writeProxy makes r the rules of a host, as a mode of kube-proxy does. Without keys that is a full sync into a host that
// has none; else a partial one after a change of those services, where the mode has one. r has all services.
func writeProxy(ctx context.Context, via string, host *netns.Namespace, r proxyRules, changed ...service.Key) error {
	for _, v4 := range []bool{true, false} {
		s := r.sync(v4, changed)
		if len(changed) > 0 && len(s.changed) == 0 {
			continue
		}
		if err := host.Do(func() error { return proxyModes[via].write(ctx, s) }); err != nil {
			return fmt.Errorf("kube-proxy rules with %s: %w", via, err)
		}
	}
	return nil
}

// proxySync is one sync of one address family.
type proxySync struct {
	v4            bool
	ip            string // "ip" or "ip6"
	ports         []servicePort
	pods          netip.Prefix
	masqueradeAll bool
	sorted        bool
	changed       map[netip.AddrPort]bool // frontends; nil in a full sync
}

// full reports whether the host has no rules yet.
func (s proxySync) full() bool { return s.changed == nil }

// sync returns the sync of one address family.
func (r proxyRules) sync(v4 bool, changed []service.Key) proxySync {
	s := proxySync{v4: v4, ip: "ip6", masqueradeAll: r.MasqueradeAll, sorted: r.Sorted}
	if v4 {
		s.ip = "ip"
	}
	for _, svc := range r.Services {
		if svc.Frontend.Addr().Is4() == v4 {
			s.ports = append(s.ports, portsOf(svc)...)
		}
	}
	for _, prefix := range r.PodCIDRs {
		if prefix.Addr().Is4() == v4 {
			s.pods = prefix
		}
	}
	if len(changed) > 0 {
		s.changed = map[netip.AddrPort]bool{}
	}
	for _, key := range changed {
		if key.Frontend.Addr().Is4() == v4 {
			s.changed[key.Frontend] = true
		}
	}
	return s
}

// writes reports whether a sync writes a port, as opposed to leaving its rules alone.
func (s proxySync) writes(p servicePort) bool { return s.full() || s.changed[p.frontend] }

// masqueradeMark is the mark of packets to masquerade (--iptables-masquerade-bit 14).
const masqueradeMark = "0x4000"

// servicePort is one port of a service in one protocol, for which kube-proxy has a chain.
type servicePort struct {
	namespace, name, port string
	protocol              string
	frontend              netip.AddrPort
	backends              []netip.AddrPort
}

// portsOf returns the ports of a service. Their names stand for those that a cluster has.
func portsOf(s service.Service) (ports []servicePort) {
	p := servicePort{namespace: "default", port: fmt.Sprintf("p%d", s.Frontend.Port()), frontend: s.Frontend}
	p.name = "mustang-" + strings.NewReplacer(".", "-", ":", "-").Replace(s.Frontend.Addr().String())
	for _, b := range s.Backends {
		p.backends = append(p.backends, b.Addr)
	}
	for _, protocol := range s.Protocol.Each() {
		p.protocol = protocol.String()
		ports = append(ports, p)
	}
	return ports
}

// String returns the name in comments and hashes.
func (p servicePort) String() string { return p.namespace + "/" + p.name + ":" + p.port }

// hash returns the first characters of a SHA-256 in base 32, as in names of chains.
func hash(text string, length int) string {
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.EncodeToString(sum[:])[:length]
}

// masquerade replaces the source address of packets from pods with that of the host when they leave through a device
// (nftables, table mustang-nat).
func masquerade(host *netns.Namespace, device string, pods []netip.Prefix) error {
	var rules strings.Builder
	for _, prefix := range pods {
		family := "ip6"
		if prefix.Addr().Is4() {
			family = "ip"
		}
		fmt.Fprintf(&rules, "add table %[1]s mustang-nat\n"+
			"add chain %[1]s mustang-nat postrouting { type nat hook postrouting priority 100 ; }\n"+
			"add rule %[1]s mustang-nat postrouting %[1]s saddr %[2]s oifname %[3]s masquerade\n", family, prefix, device)
	}
	err := host.Do(func() error { return feed(rules.String(), "nft", "-f", "-") })
	if err != nil {
		return fmt.Errorf("masquerade %v in %q: %w", pods, host.Name(), err)
	}
	return nil
}

// feed runs a program with this input. The error has what it prints to its standard error.
func feed(input, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(input), &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(stderr.String()))
	}
	return nil
}
