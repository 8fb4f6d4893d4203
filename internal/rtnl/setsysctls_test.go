// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"errors"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestSetSysctls sets several, one of which is not there.
func TestSetSysctls(t *testing.T) {
	ns := testkit.Namespace(t, "a")
	sysctls := []rtnl.Sysctl{
		{Key: "net/ipv4/ip_forward", Value: "1"},
		{Key: "net/ipv4/none", Value: "1"},
		{Key: "net/ipv4/conf/lo/arp_notify", Value: "1"},
	}
	if err := rtnl.In(ns).SetSysctls(sysctls, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
	for range 2 {
		err := rtnl.In(ns).SetSysctls(sysctls, func(s rtnl.Sysctl, err error) bool {
			return s.Key == "net/ipv4/none" && errors.Is(err, fs.ErrNotExist)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []rtnl.Sysctl{sysctls[0], sysctls[2]} {
		if value, err := rtnl.In(ns).Sysctl(s.Key); err != nil || value != s.Value {
			t.Errorf("%s is %q, %v", s.Key, value, err)
		}
	}
	if err := rtnl.In(ns).SetSysctls([]rtnl.Sysctl{{Key: "net/ipv4/ip_forward", Value: "x"}}, nil); !errors.Is(err, unix.EINVAL) {
		t.Errorf("error is %v", err)
	}
	if err := rtnl.In(ns).SetSysctls([]rtnl.Sysctl{{Key: "kernel/panic", Value: "1"}}, nil); err == nil {
		t.Error("set a sysctl outside of net/")
	}
}
