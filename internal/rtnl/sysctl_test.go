// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"testing"
)

func TestSysctlPath(t *testing.T) {
	for _, key := range []string{
		"", "net", "net/", "/net/ipv4/ip_forward", "kernel/hostname", "net/../kernel/hostname", "net/ipv4/../../kernel/x",
		"net//ipv4", "./net/ipv4/ip_forward", "net/ipv4/ip_forward/", "net/a\x00b", "net/..",
	} {
		if path, err := sysctlPath(key); err == nil {
			t.Errorf("sysctlPath(%q) = %q", key, path)
		}
	}
	const key = "net/ipv4/conf/eth0.100/proxy_arp"
	if path, err := sysctlPath(key); err != nil || path != "/proc/sys/"+key {
		t.Errorf("sysctlPath(%q) = %q, %v", key, path, err)
	}
}
