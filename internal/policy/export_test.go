// SPDX-License-Identifier: Apache-2.0

package policy

import "testing"

var mostWork = MostWork

// Bound lowers the limit of compiling during a test.
func Bound(t *testing.T, most int) {
	mostWork = most
	t.Cleanup(func() { mostWork = MostWork })
}

func (r *Rows) lookup(f Flow, rules map[uint32]Origin) (egress, ingress Decision) {
	return r.Lookup(f, Egress, rules), r.Lookup(f, Ingress, rules)
}

// Compile returns the rows for a snapshot, within the limits of a change.
func Compile(s Snapshot, have Rows) (Rows, error) { return compile(s, have, Limits{Work: mostWork}) }
