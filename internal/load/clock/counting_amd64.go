// SPDX-License-Identifier: Apache-2.0

package clock

// count runs 2 instructions n times, and a few others; n must not be 0.
//
//go:noescape
func count(n uint64)

// divide runs 5 instructions n times, and a few others; n must not be 0.
//
//go:noescape
func divide(n uint64)

// loops returns two loops, each with a fixed number of instructions. On no processor do all take the same time.
func loops() []loop { return []loop{{"counting", 2, count}, {"dividing", 5, divide}} }
