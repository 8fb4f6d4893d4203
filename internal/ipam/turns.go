// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
)

// turnsFile holds whose turn it is: the boot, and the address that each set gave out last. Each line has the same width,
// and there never get fewer, so that it is written over in place, without a moment in which it is not whole. If it is
// lost, addresses are given out from the start again, which does no harm.
const turnsFile = ".last"

const (
	lineWidth = len("2001:0db8:1111:2222:3333:4444:5555:6666")
	maxLines  = 64 // within one page, which the kernel writes as a whole
)

type turns struct {
	boot string
	last []netip.Addr
}

func (s *Store) turns() (turns, error) {
	data, err := s.content(turnsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return turns{}, nil
	}
	if err != nil {
		return turns{}, err
	}
	var t turns
	for i, line := range bytes.Fields(data) {
		if i == 0 {
			t.boot = string(line)
		} else if addr, err := netip.ParseAddr(string(line)); err == nil {
			t.last = append(t.last, addr)
		}
	}
	return t, nil
}

// of is the address that the pool gave out last.
func (t *turns) of(p pool) netip.Addr {
	if at := slices.IndexFunc(t.last, p.has); at >= 0 {
		return t.last[at]
	}
	return netip.Addr{}
}

// took makes addr the pool's last.
func (t *turns) took(p pool, addr netip.Addr) {
	if at := slices.IndexFunc(t.last, p.has); at >= 0 {
		t.last[at] = addr
		return
	}
	if t.last = append(t.last, addr); len(t.last) > maxLines {
		t.last = t.last[1:]
	}
}

func (s *Store) writeTurns(t turns) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "%-*s\n", lineWidth, t.boot)
	for _, addr := range t.last {
		fmt.Fprintf(&text, "%-*s\n", lineWidth, addr)
	}
	return s.do("turn", func() error {
		file, err := os.OpenFile(s.path(turnsFile), os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		_, err = file.Write(text.Bytes())
		return errors.Join(err, file.Close())
	})
}
