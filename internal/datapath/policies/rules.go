// SPDX-License-Identifier: Apache-2.0

package policies

import "mustang/internal/policy"

// Rules returns what the numbers of rules mean.
func (p Policies) Rules() (map[uint32]policy.Origin, error) {
	docs, err := p.read()
	if err != nil {
		return nil, err
	}
	numbers, err := p.tables().numbers.Rows()
	if err != nil {
		return nil, err
	}
	var s policy.Snapshot
	for _, each := range []state{docs.before, docs.now} {
		s.Policies = append(s.Policies, each.inForce()...)
	}
	return s.Rules(numbers), nil
}
