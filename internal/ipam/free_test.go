// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"testing"
)

// TestFree asks a store before and after its only addresses are taken.
func TestFree(t *testing.T) {
	s := open(t)
	sets := parseSets("10.1.0.0/30", "fd00::/64")
	if err := s.Free(sets); err != nil {
		t.Fatal(err)
	}
	owner := Owner{ContainerID: "a", IfName: "eth0"}
	if _, err := s.Reserve(owner, sets, nil); err != nil {
		t.Fatal(err)
	}
	var full *FullError
	if err := s.Free(sets); !errors.As(err, &full) || full.InUse == 0 {
		t.Errorf("the only address of 10.1.0.0/30 is taken, and Free says %v", err)
	}
	if _, err := s.Release(owner); err != nil {
		t.Fatal(err)
	}
	if err := s.Free(sets); err != nil {
		t.Error(err)
	}
}
