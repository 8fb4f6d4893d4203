// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"testing"

	"github.com/cilium/ebpf/features"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestTakesBigIPv6 compares the answer with the kernel's version: Linux 7.0 dropped the jumbo header.
func TestTakesBigIPv6(t *testing.T) {
	version := testkit.Must(features.LinuxVersionCode())(t)
	want := version >= 7<<16
	testkit.Check(t, rtnl.TakesBigIPv6() == want, "Linux %d.%d: got %v, want %v",
		version>>16, version>>8&0xff, !want, want)
}
