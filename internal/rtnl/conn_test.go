// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
