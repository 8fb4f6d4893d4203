// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"testing"

	"mustang/internal/netns"
)

// TestNetfilterLacksPart asks for a part that no kernel has.
func TestNetfilterLacksPart(t *testing.T) {
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	if err := In(ns).askNetfilter("nothing", 0xff<<8); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("error is %v", err)
	}
}
