// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net/netip"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/policies"
)

// otherBlocks is the first of the ranges of addresses that rules before the last one allow. Nobody in the lab is in them.
var otherBlocks = netip.MustParsePrefix("10.128.0.0/24")

// checkPolicy checks the options of network policies and of the source guard.
func (o Options) checkPolicy() error {
	byRules := o.Policy == ViaIPTables || o.Policy == ViaNFTables
	switch {
	case o.Unguarded && o.Datapath != DatapathEBPF:
		return optionErrorf("unguarded: datapath %s: no source guard", o.Datapath)
	case o.Policy == "" && o.PolicyRules == 0:
		return nil
	case o.Topology != TopologyPodLinks:
		return optionErrorf("policy %s: only in topology %s", o.Policy, TopologyPodLinks)
	case o.PolicyRules < 1 || o.PolicyRules > MaxPolicyRules:
		return optionErrorf("policy rules %d: want 1 to %d", o.PolicyRules, MaxPolicyRules)
	case o.Datapath == DatapathEBPF && o.Policy != ViaEBPFTC, o.Datapath == DatapathKernel && !byRules:
		return optionErrorf("policy %q: want %s with datapath ebpf, %s or %s with kernel", o.Policy, ViaEBPFTC, ViaIPTables, ViaNFTables)
	case byRules && o.Via != ViaNone:
		return optionErrorf("policy %s: not with the rules of services by %s", o.Policy, o.Via)
	case byRules && !takesPodDatapath(o.traits()) && !o.NetfilterCall:
		return optionErrorf("policy %s: packets on link %s pass no rules of the host", o.Policy, o.Link)
	}
	return nil
}

// allowed returns what may connect to pod-a at [PlainPort]: ranges of addresses that no host or pod has, and last pod-b.
func (l *Lab) allowed() allowlist {
	list := allowlist{Pod: PodAIPs[0]}
	first := otherBlocks.Addr().As4()
	for i := range l.Options.PolicyRules - 1 {
		at := netip.AddrFrom4([4]byte{first[0], first[1] + byte(i>>8), byte(i), 0})
		list.Rules = append(list.Rules, allowRule{From: netip.PrefixFrom(at, otherBlocks.Bits()), Port: PlainPort})
	}
	list.Rules = append(list.Rules, fromPodB(PlainPort))
	return list
}

// fromPodB is a rule that allows pod-b a port.
func fromPodB(port uint16) allowRule {
	return allowRule{From: netip.PrefixFrom(PodBIPs[0], PodBIPs[0].BitLen()), Port: port}
}

// iptables returns the host's rules of iptables.
func (l *Lab) iptables() iptablesList { return iptablesList{Host: l.namespaces[Host]} }

// withAllowlist calls do with the host's table of nftables.
func (l *Lab) withAllowlist(do func(*nftablesList) error) (err error) {
	if l.allowlist == nil {
		if l.allowlist, err = openNFTables(l.namespaces[Host]); err != nil {
			return err
		}
	}
	return do(l.allowlist)
}

// WritePolicy writes the network policy of a lab that has none, by the lab's implementation.
func (l *Lab) WritePolicy(ctx context.Context) error {
	list := l.allowed()
	switch l.Options.Policy {
	case ViaIPTables:
		return l.iptables().Write(list)
	case ViaNFTables:
		return l.withAllowlist(func(t *nftablesList) error { return t.Write(ctx, list) })
	}
	return l.applyPolicy(ctx, policies.Set{Snapshot: list.Snapshot()})
}

// ClearPolicy removes the network policy of a lab.
func (l *Lab) ClearPolicy(ctx context.Context) error {
	switch l.Options.Policy {
	case ViaIPTables:
		return l.iptables().Clear()
	case ViaNFTables:
		return l.withAllowlist(func(t *nftablesList) error { return t.Clear(ctx) })
	}
	return l.applyPolicy(ctx, policies.Set{})
}

// AllowDenied adds a rule to a lab's network policy that allows pod-b the [DeniedPort], or removes it.
func (l *Lab) AllowDenied(ctx context.Context, allow bool) error {
	list, more := l.allowed(), fromPodB(DeniedPort)
	switch {
	case l.Options.Policy == ViaIPTables && allow:
		return l.iptables().Add(list, more)
	case l.Options.Policy == ViaIPTables:
		return l.iptables().Remove(list, more)
	case l.Options.Policy == ViaNFTables && allow:
		return l.withAllowlist(func(t *nftablesList) error { return t.Add(ctx, more) })
	case l.Options.Policy == ViaNFTables:
		return l.withAllowlist(func(t *nftablesList) error { return t.Remove(ctx, more) })
	case allow:
		list.Rules = append(list.Rules, more)
	}
	return l.applyPolicy(ctx, policies.Set{Snapshot: list.Snapshot()})
}

func (l *Lab) applyPolicy(ctx context.Context, set policies.Set) error {
	_, err := l.datapath.Policies().Apply(ctx, owner, set)
	return err
}

// RuleCounters returns the packets that the rules of a network policy have counted, by what they do; nil if none enforces one.
func (l *Lab) RuleCounters() (map[string]uint64, error) {
	var c ruleCounts
	var err error
	switch l.Options.Policy {
	case ViaIPTables:
		c, err = l.iptables().Counters()
	case ViaNFTables:
		err = l.withAllowlist(func(t *nftablesList) (err error) {
			c, err = t.Counters()
			return err
		})
	default:
		return nil, nil
	}
	return map[string]uint64{"established": c.Established, "allowed": c.Allowed, "denied": c.Denied}, err
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
		_ = unix.Connect(fd, &unix.SockaddrInet4{Port: DeniedPort, Addr: PodAIPs[0].As4()}) // whether it is denied, counters tell
		return nil
	})
}
