// SPDX-License-Identifier: Apache-2.0

package policy

import "testing"

// Bound lowers what compiling may cost, during a test.
func Bound(t *testing.T, most int) {
	mostWork = most
	t.Cleanup(func() { mostWork = MostWork })
}
