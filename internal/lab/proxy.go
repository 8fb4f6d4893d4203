// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"mustang/internal/netns"
	"mustang/internal/service"
)

type proxyRules struct {
	Services []service.Service // the services of both address families
	PodCIDRs []netip.Prefix    // the ranges of pod addresses, one per address family (kube-proxy's --cluster-cidr)
	// --masquerade-all: replaces the source of every client, for links where replies would bypass the host.
	MasqueradeAll bool
	// Sorted declares chains of iptables in the order that iptables-restore reads fastest, unlike kube-proxy.
	Sorted bool
}

// proxy writes service rules into a host's network namespace as a mode of kube-proxy of Kubernetes 1.34 does.
type proxy struct {
	host *netns.Namespace
	via  string
	// nft are the tables of mode nftables, IPv4 first. Like kube-proxy, a proxy checks the program nft once.
	nft []knftables.Interface
}

func openProxy(via string, host *netns.Namespace) (*proxy, error) {
	p := &proxy{host: host, via: via}
	if via != ViaNFTables {
		return p, nil
	}
	for _, family := range families {
		err := host.Do(func() error {
			nft, err := knftables.New(family.nft, nftablesTable)
			p.nft = append(p.nft, nft)
			return err
		})
		if err != nil {
			return nil, p.failed(err)
		}
	}
	return p, nil
}

func (p *proxy) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("kube-proxy rules with %s: %w", p.via, err)
}

// write makes r the rules of the host. Without keys it does a full sync into a host without rules. With keys it does
// a partial sync after a change of these services, if the mode has one. r has all services.
func (p *proxy) write(ctx context.Context, r proxyRules, changed ...service.Key) (err error) {
	for i, family := range families {
		s, needed := newProxySync(r, family, changed)
		switch {
		case p.via == ViaIPVS:
			err = s.ipvs(p.host)
		case !needed:
		case p.via == ViaIPTables:
			err = s.iptables(p.host)
		default:
			err = p.host.Do(func() error { return s.nftables(ctx, p.nft[i]) })
		}
		if err != nil {
			return p.failed(err)
		}
	}
	return nil
}

// clear removes what write wrote, with iptables and IPVS all other rules of the nat and filter tables too.
func (p *proxy) clear(ctx context.Context) (err error) {
	for i, family := range families {
		if p.via == ViaNFTables {
			tx := p.nft[i].NewTransaction()
			tx.Add(&knftables.Table{})
			tx.Delete(&knftables.Table{})
			err = p.host.Do(func() error { return p.nft[i].Run(ctx, tx) })
		} else {
			err = feed(p.host, iptablesEmpty, family.program+"-restore", "-w")
		}
		if err != nil {
			return p.failed(err)
		}
	}
	if p.via == ViaIPVS {
		err = p.host.Do(clearIPVS)
	}
	return p.failed(err)
}

const masqueradeMark = "0x4000" // the mark of packets to masquerade (--iptables-masquerade-bit 14)

// family is an address family, as the tools call it.
type family struct {
	nft         knftables.Family // "ip" or "ip6"
	program     string           // iptables
	addressType string           // in sets of nftables
	localhost   string
	set         string // of cluster IPs with their ports (IPVS)
	number      int
	netmask     uint32 // of services (IPVS)
}

var families = []family{
	{knftables.IPv4Family, "iptables", "ipv4_addr", "127.0.0.0/8", "KUBE-CLUSTER-IP", unix.AF_INET, 0xffffffff},
	{knftables.IPv6Family, "ip6tables", "ipv6_addr", "::1/128", "KUBE-6-CLUSTER-IP", unix.AF_INET6, 128},
}

func familyOf(addr netip.Addr) family {
	if addr.Is4() {
		return families[0]
	}
	return families[1]
}

type proxySync struct {
	family
	ports                 []servicePort
	pods                  netip.Prefix
	masqueradeAll, sorted bool
	full                  bool // into a host without rules
	changed               func(servicePort) bool
}

func newProxySync(r proxyRules, f family, changed []service.Key) (s proxySync, needed bool) {
	s = proxySync{family: f, masqueradeAll: r.MasqueradeAll, sorted: r.Sorted, full: len(changed) == 0}
	for _, prefix := range r.PodCIDRs {
		if familyOf(prefix.Addr()) == f {
			s.pods = prefix
		}
	}
	frontends := map[netip.AddrPort]bool{}
	for _, key := range changed {
		frontends[key.Frontend] = true
		needed = needed || familyOf(key.Frontend.Addr()) == f
	}
	s.changed = func(p servicePort) bool { return s.full || frontends[p.frontend] }
	for _, service := range r.Services {
		if familyOf(service.Frontend.Addr()) == f {
			s.ports = append(s.ports, portsOf(service)...)
		}
	}
	return s, needed || s.full
}

// servicePort is one port of a service in one protocol, for which kube-proxy has a chain.
type servicePort struct {
	namespace, name, port string
	protocol              string
	frontend              netip.AddrPort
	backends              []netip.AddrPort
}

func portsOf(s service.Service) (out []servicePort) {
	p := servicePort{namespace: "default", port: fmt.Sprintf("p%d", s.Frontend.Port()), frontend: s.Frontend}
	p.name = "mustang-" + strings.NewReplacer(".", "-", ":", "-").Replace(s.Frontend.Addr().String())
	p.backends = convert(s.Backends, func(b service.Backend) netip.AddrPort { return b.Addr })
	for _, protocol := range s.Protocol.Each() {
		p.protocol = protocol.String()
		out = append(out, p)
	}
	return out
}

// String returns the name in comments and hashes.
func (p servicePort) String() string { return p.namespace + "/" + p.name + ":" + p.port }

func hash(text string, length int) string {
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.EncodeToString(sum[:])[:length]
}

func feed(host *netns.Namespace, input, program string, args ...string) error {
	_, err := output(host, input, program, args...)
	return err
}

// output returns what a program prints at the host. An error has what it wrote to standard error.
func output(host *netns.Namespace, input, program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := host.Do(cmd.Run); err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
