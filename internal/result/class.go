// SPDX-License-Identifier: Apache-2.0

package result

import "slices"

// Classes of paths whose noise is alike, see [Comparison.Class].
const (
	ClassKernel    = "kernel"
	ClassTwoCPUs   = "two CPUs"
	ClassUserSpace = "user space"
	ClassGuests    = "virtual machines"
)

// Classes lists the classes, the quietest first. Rows that took no turns have the first,
// empty one.
func Classes() []string {
	return []string{"", ClassKernel, ClassTwoCPUs, ClassUserSpace, ClassGuests}
}

// NoisierClass returns the noisier of two classes, that of their comparison.
func NoisierClass(a, b string) string {
	order := Classes()
	return order[max(slices.Index(order, a), slices.Index(order, b), 0)]
}
