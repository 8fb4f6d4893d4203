// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net/netip"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath"
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

// ebpfList is the list as a network policy of the lab's datapath.
type ebpfList struct{ datapath *datapath.Datapath }

// Write applies the policy.
func (e ebpfList) Write(ctx context.Context, l allowlist) error {
	return e.apply(ctx, policies.Set{Snapshot: l.Snapshot()})
}

// Add applies the policy with a further rule.
func (e ebpfList) Add(ctx context.Context, l allowlist, r allowRule) error {
	l.Rules = append(l.Rules, r)
	return e.Write(ctx, l)
}

// Remove applies the policy without that rule.
func (e ebpfList) Remove(ctx context.Context, l allowlist, _ allowRule) error { return e.Write(ctx, l) }

// Clear removes the policy.
func (e ebpfList) Clear(ctx context.Context) error { return e.apply(ctx, policies.Set{}) }

// Counters returns none: the datapath has its own.
func (ebpfList) Counters() (map[string]uint64, error) { return nil, nil }

func (e ebpfList) apply(ctx context.Context, set policies.Set) error {
	_, err := e.datapath.Policies().Apply(ctx, owner, set)
	return err
}

// enforcer returns the lab's implementation of its network policy.
func (l *Lab) enforcer() (_ enforcer, err error) {
	switch l.Options.Policy {
	case ViaIPTables:
		return iptablesList{host: l.namespaces[Host]}, nil
	case ViaNFTables:
		if l.allowlist == nil {
			l.allowlist, err = openNFTables(l.namespaces[Host])
		}
		return l.allowlist, err
	}
	return ebpfList{l.datapath}, nil
}

// WritePolicy writes the network policy of a lab that has none, by the lab's implementation.
func (l *Lab) WritePolicy(ctx context.Context) error {
	e, err := l.enforcer()
	if err != nil {
		return err
	}
	return e.Write(ctx, l.allowed())
}

// ClearPolicy removes the network policy of a lab.
func (l *Lab) ClearPolicy(ctx context.Context) error {
	e, err := l.enforcer()
	if err != nil {
		return err
	}
	return e.Clear(ctx)
}

// AllowDenied adds a rule to a lab's network policy that allows pod-b the [DeniedPort], or removes it.
func (l *Lab) AllowDenied(ctx context.Context, allow bool) error {
	e, err := l.enforcer()
	switch {
	case err != nil:
		return err
	case allow:
		return e.Add(ctx, l.allowed(), fromPodB(DeniedPort))
	}
	return e.Remove(ctx, l.allowed(), fromPodB(DeniedPort))
}

// RuleCounters returns the packets that the rules of a network policy have counted, by what they do; nil if none enforces one.
func (l *Lab) RuleCounters() (map[string]uint64, error) {
	e, err := l.enforcer()
	if err != nil {
		return nil, err
	}
	return e.Counters()
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
