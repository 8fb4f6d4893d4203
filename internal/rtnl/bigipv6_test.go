// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestTakesBigIPv6 compares the answer with the kernel's version: Linux 7.0 dropped the jumbo header.
func TestTakesBigIPv6(t *testing.T) {
	var name unix.Utsname
	testkit.Succeed(t, unix.Uname(&name))
	release := unix.ByteSliceToString(name.Release[:])
	var major int
	testkit.Must(fmt.Sscanf(release, "%d.", &major))(t)
	got := rtnl.TakesBigIPv6()
	testkit.Check(t, got == (major >= 7), "Linux %s: got %v", release, got)
}
