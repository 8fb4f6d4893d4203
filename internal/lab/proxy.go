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

	"sigs.k8s.io/knftables"

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

// proxy writes service rules into the network namespace of a host as a mode of kube-proxy of Kubernetes 1.34 does. Labs
// compare eBPF services with them.
type proxy interface {
	// Write makes r the rules of a host. Without keys that is a full sync into a host that has none; else a partial one
	// after a change of those services, where the mode has one. r has all services.
	Write(ctx context.Context, r proxyRules, changed ...service.Key) error
	// Clear removes what Write wrote, with iptables all other rules of the nat and filter tables too.
	Clear(ctx context.Context) error
}

// openProxy returns the proxy of a mode in a host, and changes nothing there.
func openProxy(via string, host *netns.Namespace) (proxy, error) {
	switch via {
	case ViaIPTables:
		return iptablesProxy{host}, nil
	case ViaIPVS:
		return ipvsProxy{host}, nil
	}
	return openNFTables(host)
}

// masqueradeMark is the mark of packets to masquerade (--iptables-masquerade-bit 14).
const masqueradeMark = "0x4000"

// servicePort is one port of a service in one protocol, for which kube-proxy has a chain.
type servicePort struct {
	namespace, name, port string
	protocol              string
	frontend              netip.AddrPort
	backends              []netip.AddrPort
}

// portsOf returns the ports of services. Their names stand for those that a cluster has.
func portsOf(services []service.Service) []servicePort {
	var out []servicePort
	for _, s := range services {
		p := servicePort{namespace: "default", port: fmt.Sprintf("p%d", s.Frontend.Port()), frontend: s.Frontend}
		p.name = "mustang-" + strings.NewReplacer(".", "-", ":", "-").Replace(s.Frontend.Addr().String())
		for _, b := range s.Backends {
			p.backends = append(p.backends, b.Addr)
		}
		for _, protocol := range s.Protocol.Each() {
			p.protocol = protocol.String()
			out = append(out, p)
		}
	}
	return out
}

// String returns the name in comments and hashes.
func (p servicePort) String() string { return p.namespace + "/" + p.name + ":" + p.port }

// changedSet returns the services among all whose keys are given; all if none are.
func changedSet(changed []service.Key) func(servicePort) bool {
	if len(changed) == 0 {
		return func(servicePort) bool { return true }
	}
	set := map[netip.AddrPort]bool{}
	for _, key := range changed {
		set[key.Frontend] = true
	}
	return func(p servicePort) bool { return set[p.frontend] }
}

// family returns the services of one address family and the range of its pods.
func (r proxyRules) family(v4 bool) (services []service.Service, pods netip.Prefix) {
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

// hash returns the first characters of a SHA-256 in base 32, as in names of chains.
func hash(text string, length int) string {
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.EncodeToString(sum[:])[:length]
}

// masquerade replaces the source address of packets from pods with that of the host when they leave through a device
// (nftables, table mustang-nat).
func masquerade(ctx context.Context, host *netns.Namespace, device string, pods []netip.Prefix) error {
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

// feed runs a program with this input in a host. The error has what it prints to its standard error.
func feed(host *netns.Namespace, input, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(input), &stderr
	if err := host.Do(cmd.Run); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(stderr.String()))
	}
	return nil
}
