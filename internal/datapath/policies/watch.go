// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"context"
	"net/netip"
	"time"

	"mustang/internal/datapath/flows"
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

// Watch calls each with what policies deny, until ctx ends, and leftOut with how many events were left out, if any were, as
// [flows.Flows.Watch] does. Errors: *dirlock.Error if another process watches; one that matches os.ErrNotExist once the datapath is removed.
func (p Policies) Watch(ctx context.Context, each func(Denied) error, leftOut func(uint64) error) error {
	var rules map[uint32]policy.Origin
	var of follows
	return flows.Flows{Objects: p.Objects}.Watch(ctx, func(e flows.Event) error {
		now, _, err := p.tables().follows.Get(followsRow)
		if err != nil {
			return err
		}
		if _, ok := rules[e.Rule]; !ok || now != of {
			of = now
			if rules, err = p.Rules(); err != nil {
				return err
			}
			rules[e.Rule] = rules[e.Rule] // which it may not have
		}
		return each(Denied{
			Time: e.Time, Source: e.Source, Destination: e.Destination, Protocol: e.Protocol, Message: e.Message,
			Rule: rules[e.Rule], Audited: e.Verdict == flows.Audited,
		})
	}, leftOut, flows.Denied)
}

// Rules returns what the numbers of rules mean.
func (p Policies) Rules() (map[uint32]policy.Origin, error) {
	docs, err := p.read()
	if err != nil {
		return nil, err
	}
	numbers := map[policy.Digest]uint32{}
	for row, err := range p.tables().numbers.All() {
		if err != nil {
			return nil, err
		}
		numbers[row.Key] = row.Value
	}
	var s policy.Snapshot
	for _, each := range []state{docs.before, docs.now} {
		s.Policies = append(s.Policies, each.inForce()...)
	}
	return s.Rules(numbers), nil
}
