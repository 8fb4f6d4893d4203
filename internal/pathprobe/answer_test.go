// SPDX-License-Identifier: Apache-2.0

package pathprobe

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// TestAnswer answers probes of the MTU over IPv6, from one address, until it ends. It does not answer probes of VXLAN.
func TestAnswer(t *testing.T) {
	testkit.RequireRoot(t)
	a, b := testkit.VethPair(t)
	at, from := netip.MustParseAddrPort("[fd00:1::2]:7178"), netip.MustParseAddr("fd00:1::1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Answer(ctx, Options{Host: b, At: at}, func(sender netip.Addr) bool { return sender == from })
	}()
	o := Options{Host: a, At: at, From: from}
	testkit.Eventually(t, time.Minute, func() error {
		path, err := ProbeMTU(t.Context(), o)
		if err == nil && path.Least() != 1500 {
			err = errors.New(path.SmallMTU("the other end"))
		}
		return err
	})
	_, err := Probe(t.Context(), o)
	testkit.Check(t, errors.Is(err, ErrNoAnswer) && !errors.Is(err, unix.ECONNREFUSED), "a probe of VXLAN: %v", err)
	cancel()
	err = <-done
	testkit.Check(t, err == nil, "the end of it: %v", err)
	_, err = ProbeMTU(t.Context(), o)
	testkit.Check(t, errors.Is(err, unix.ECONNREFUSED), "after its end: %v", err)
}
