// SPDX-License-Identifier: Apache-2.0

package explain

// Quick makes explanations measure less: two rounds with tracing, and one without before each.
func Quick() { thorough = effort{rounds: 2, untraced: 1, counters: true} }
