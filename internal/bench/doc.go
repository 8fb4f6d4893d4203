// SPDX-License-Identifier: Apache-2.0

// Package bench measures the paths of a suite side by side: in each round every
// row runs once, in random order, and rows are compared by their ratios within a
// round, so that what slows the machine for a while slows both. With each sample
// it checks by counters that the traffic took the path that the row claims.
package bench
