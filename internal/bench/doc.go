// SPDX-License-Identifier: Apache-2.0

// Package bench measures the paths of a suite side by side: in each round every
// row runs once, in random order, and rows are compared by their ratios within a
// round, so that what slows the machine for a while slows both. With each sample
// it checks by counters that the traffic took the path that the row claims: the
// devices that its packets pass and those that they must not pass, whom the server
// sees, and where addresses are translated.
//
// A suite ([Suites]) answers one question. Several are run one after the other,
// each with networks of its own.
package bench
