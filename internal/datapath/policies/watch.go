// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"context"
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/policy"
	"mustang/internal/service"
)

// Denied is a connection that policies deny: its first packet, or one that came after policies had changed. A connection to a
// service has its backend as destination.
type Denied struct {
	Time                time.Time
	Source, Destination netip.AddrPort
	Protocol            service.Protocol
	// Message is the type of a message of ICMP, which has no ports.
	Message uint8
	Rule    policy.Origin
	// Audited connections passed all the same.
	Audited bool
}

// Watch calls each with what policies deny, until ctx ends. What comes faster than each returns is left out. Errors:
// *dirlock.Error if another process watches; one that matches os.ErrNotExist once the datapath is removed.
func (p Policies) Watch(ctx context.Context, each func(Denied) error) error {
	if err := p.Objects.OpenTables(); err != nil {
		return err
	}
	rules := map[uint32]policy.Origin{}
	return p.Objects.WatchPolicies(ctx, func(data []byte, at time.Time) error {
		var e event
		if _, err := binary.Decode(data, binary.NativeEndian, &e); err != nil {
			return err
		}
		rule, ok := rules[e.Rule]
		if !ok {
			var err error
			if rules, err = p.rules(); err != nil {
				return err
			}
			rule = rules[e.Rule]
			rules[e.Rule] = rule
		}
		denied := Denied{
			Time: at, Source: e.Source.addrPort(e.SourcePort), Destination: e.Destination.addrPort(e.DestinationPort),
			Protocol: service.Protocol(e.Protocol), Rule: rule, Audited: e.Audited != 0,
		}
		if e.Protocol == unix.IPPROTO_ICMP || e.Protocol == unix.IPPROTO_ICMPV6 { // programs have its type in place of ports
			denied.Message = uint8(denied.Source.Port())
			denied.Source, denied.Destination = netip.AddrPortFrom(denied.Source.Addr(), 0), netip.AddrPortFrom(denied.Destination.Addr(), 0)
		}
		return each(denied)
	})
}

// rules returns what the numbers of rules mean.
func (p Policies) rules() (map[uint32]policy.Origin, error) {
	d, err := p.read()
	if err != nil {
		return nil, err
	}
	s, err := p.assemble(d)
	if err != nil {
		return nil, err
	}
	have, err := p.readRows()
	if err != nil {
		return nil, err
	}
	now, err := policy.Compile(s, have)
	return now.Rules, err
}

func (a address) addrPort(port [2]byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), binary.BigEndian.Uint16(port[:]))
}
