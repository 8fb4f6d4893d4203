// SPDX-License-Identifier: Apache-2.0

package result

import "slices"

// Classes lists the classes, the quietest first. Rows that took no turns have the first,
// empty one.
func Classes() []string {
	return []string{"", ClassKernel, ClassTwoCPUs, ClassUserSpace, ClassGuests}
}

// SetClass gives the comparison the noisier of its rows' classes.
func (c *Comparison) SetClass(a, b string) {
	order := Classes()
	c.Class = order[max(slices.Index(order, a), slices.Index(order, b), 0)]
}
