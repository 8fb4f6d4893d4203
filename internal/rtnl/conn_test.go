// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

func TestDump(t *testing.T) {
	other := errors.New("other")
	rows := []struct {
		name  string
		fails []error // one per call, then success
		calls int
		want  error
	}{
		{"at once", nil, 1, nil},
		{"changed during the dump", []error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted}, 3, nil},
		{"signal", []error{unix.EINTR}, 2, nil},
		{"another error", []error{unix.EINTR, other}, 2, other},
		{"for ever", repeat(netlink.ErrDumpInterrupted, dumpAttempts+1), dumpAttempts, netlink.ErrDumpInterrupted},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			calls := 0
			got, err := Dump(func() ([]int, error) {
				calls++
				if calls <= len(row.fails) {
					return []int{0}, row.fails[calls-1] // incomplete
				}
				return []int{1, 2}, nil
			})
			if calls != row.calls || !errors.Is(err, row.want) {
				t.Errorf("%d calls, error %v", calls, err)
			}
			if row.want == nil && len(got) != 2 {
				t.Errorf("got %v", got)
			}
		})
	}
}

func repeat(err error, n int) []error {
	var out []error
	for range n {
		out = append(out, err)
	}
	return out
}

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

// TestNetfilterLacksPart probes a part that every kernel lacks.
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
