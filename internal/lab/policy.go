// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"mustang/internal/datapath/policies"
)

// otherBlocks is the first range that rules before the last one allow. No place has its addresses.
var otherBlocks = netip.MustParsePrefix("10.128.0.0/24")

// allowed is the list for [PlainPort] of pod-a: ranges that no host or pod has, and last pod-b.
func (l *Lab) allowed() []allowRule {
	var rules []allowRule
	first := otherBlocks.Addr().As4()
	for i := range l.Options.PolicyRules - 1 {
		at := netip.AddrFrom4([4]byte{first[0], first[1] + byte(i>>8), byte(i), 0})
		rules = append(rules, allowRule{From: netip.PrefixFrom(at, otherBlocks.Bits()), Port: PlainPort})
	}
	return append(rules, fromPodB(PlainPort))
}

func fromPodB(port uint16) allowRule {
	return allowRule{From: netip.PrefixFrom(PodBIPs[0], PodBIPs[0].BitLen()), Port: port}
}

// setPolicy changes the network policy via the lab's implementation. The datapath writes a list as a whole. The
// others take a text of iptables-restore or a transaction of nftables.
func (l *Lab) setPolicy(ctx context.Context, rules []allowRule, text string, fill func(*knftables.Transaction)) error {
	host := l.namespaces[Host]
	var err error
	switch l.Options.Policy {
	case ViaIPTables:
		err = feed(host, "*filter\n"+text+"COMMIT\n", "iptables-restore", "-w", "--noflush")
	case ViaNFTables:
		err = host.Do(func() (err error) {
			if l.listTable == nil {
				if l.listTable, err = knftables.New(knftables.IPv4Family, listTable); err != nil {
					return err
				}
			}
			tx := l.listTable.NewTransaction()
			fill(tx)
			return l.listTable.Run(ctx, tx)
		})
	default:
		_, err = l.datapath.Policies().Apply(ctx, owner, policies.Set{Snapshot: snapshot(rules)})
	}
	if err != nil {
		return fmt.Errorf("allow list with %s: %w", l.Options.Policy, err)
	}
	return nil
}

// WritePolicy writes the first network policy of a lab, via the lab's implementation.
func (l *Lab) WritePolicy(ctx context.Context) error {
	rules, text := l.allowed(), ""
	if l.Options.Policy == ViaIPTables {
		text = iptablesList(rules)
	}
	return l.setPolicy(ctx, rules, text, func(tx *knftables.Transaction) { addList(tx, rules) })
}

// ClearPolicy removes the network policy of a lab.
func (l *Lab) ClearPolicy(ctx context.Context) error {
	return l.setPolicy(ctx, nil, "-F FORWARD\n-F POD-ALLOWLIST\n-X POD-ALLOWLIST\n",
		func(tx *knftables.Transaction) { tx.Delete(&knftables.Table{}) })
}

// AllowDenied adds a rule to a lab's network policy that allows pod-b the [DeniedPort], or removes it. As Calico's
// Felix, iptables and nftables write the changed rule alone.
func (l *Lab) AllowDenied(ctx context.Context, allow bool) error {
	rules, changed := l.allowed(), fromPodB(DeniedPort)
	if !allow {
		return l.setPolicy(ctx, rules, fmt.Sprintf("-D POD-ALLOWLIST %d\n", len(rules)+1),
			func(tx *knftables.Transaction) { tx.Delete(changed.element()) })
	}
	text := fmt.Sprintf("-I POD-ALLOWLIST %d %s", len(rules)+1, changed.iptables())
	return l.setPolicy(ctx, append(rules, changed), text,
		func(tx *knftables.Transaction) { tx.Add(changed.element()) })
}

// RuleCounters returns the packets that the rules of a network policy have counted, by what they do; nil without rules.
func (l *Lab) RuleCounters() (map[string]uint64, error) {
	chains, ok := chainsOf[l.Options.Policy]
	if !ok {
		return nil, nil
	}
	return chains.counters(l.namespaces[Host])
}

// Knock sends the first packet of a connection from pod-b to the [DeniedPort] of pod-a, if a network policy denies it.
func (l *Lab) Knock() error {
	if l.Options.Policy == "" {
		return nil
	}
	return l.namespaces[PodB].Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		// counters show whether it is denied
		_ = unix.Connect(fd, &unix.SockaddrInet4{Port: DeniedPort, Addr: PodAIPs[0].As4()})
		return nil
	})
}
