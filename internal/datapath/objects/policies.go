// SPDX-License-Identifier: Apache-2.0

package objects

import "sync/atomic"

// PoliciesInForce returns 1 + the row of the policies' settings that programs use; 0: no pod has a rule set.
func (f *Filter) PoliciesInForce() (row uint64, err error) {
	err = f.edit(func(r *tcFilter) { row = atomic.LoadUint64(&r.Policies) })
	return row, err
}

// EnforcePolicies sets what PoliciesInForce returns. Change must follow.
func (f *Filter) EnforcePolicies(row uint64) error {
	return f.edit(func(r *tcFilter) { atomic.StoreUint64(&r.Policies, row) })
}
