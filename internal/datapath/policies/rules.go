// SPDX-License-Identifier: Apache-2.0

package policies

import "mustang/internal/policy"

// Rules returns what the numbers of rules mean.
func (p Policies) Rules() (map[uint32]policy.Origin, error) {
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
