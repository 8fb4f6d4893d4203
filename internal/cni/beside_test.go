// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"sync"
	"testing"
)

// TestAddressesAtOnce adds pods of two networks with one address at once: no more than one gets it, and nothing is left of the other.
func TestAddressesAtOnce(t *testing.T) {
	for _, link := range takingModes {
		t.Run(link, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			one, two := taking(link, "off")
			first, second := f.pod("a", one), f.pod("b", two)
			for range 10 {
				var errs [2]error
				var all sync.WaitGroup
				all.Go(func() { errs[0] = f.add(first) })
				all.Go(func() { errs[1] = f.add(second) })
				all.Wait()
				if errs[0] == nil && errs[1] == nil {
					t.Error("both pods have the address")
				}
				f.must(f.del(first))
				f.must(f.del(second))
			}
			f.must(f.add(first))
			f.must(f.del(first))
		})
	}
}
