// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/testkit"
)

// TestWireRate sends more than a slow wire can carry at once, each way. What it
// holds is a lower bound: no load on the machine makes the wire faster.
func TestWireRate(t *testing.T) {
	const rate, payload, burst = 20_000_000, 1 << 20, 128 << 10
	s := store(t)
	for name, o := range map[string]lab.Options{
		"host": {Link: lab.LinkHost}, "bridge vxlan": {Link: "bridge", Overlay: lab.OverlayVXLAN},
		"ovs-veth": {Link: "ovs-veth"}, "macvlan": {Link: "macvlan"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Topology, o.WireRate = lab.TopologyTwoHosts, rate
			l := up(t, s, options(o))
			server, client := lab.HostA, lab.HostB
			if o.Link != lab.LinkHost {
				server, client = lab.PodA, lab.PodB
			}
			at := testkit.Echo(t, place(t, l, server), "tcp", netip.AddrPortFrom(lab.Addresses(l.Options, server)[0], 0).String())
			began := time.Now()
			if _, err := testkit.RoundTrip(t, place(t, l, client), "tcp", at.String(), make([]byte, payload)); err != nil {
				t.Fatal(err)
			}
			if took, least := time.Since(began), time.Duration(payload-burst)*8*time.Second/rate; took < least {
				t.Errorf("%d bytes crossed a wire of %d bit/s in %v, which takes %v", payload, rate, took, least)
			}
		})
	}
}

// TestWireDelay is about what the kernel lacks, where it does.
func TestWireDelay(t *testing.T) {
	const delay = 20 * time.Millisecond
	s := store(t)
	o := options(lab.Options{Topology: lab.TopologyTwoHosts, Link: "bridge", WireDelay: delay, WireRate: 100_000_000})
	netem := testkit.Namespace(t, "netem").TryQdisc("netem")
	if errors.Is(netem, errors.ErrUnsupported) {
		_, err := s.Up(context.Background(), o)
		var unsupported *lab.UnsupportedError
		if !errors.As(err, &unsupported) || !errors.Is(err, errors.ErrUnsupported) || unsupported.Module != "sch_netem" {
			t.Errorf("error %v, want one that names what is missing", err)
		}
		if left := leftovers(t, o.Name, s.Dir); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
	testkit.RequireMode(t, netem)
	l := up(t, s, o)
	for _, addr := range lab.Addresses(o, lab.PodA) {
		began := time.Now()
		if err := testkit.Ping(place(t, l, lab.PodB), addr, 8); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 2*delay {
			t.Errorf("there and back took %v with a delay of %v each way", took, delay)
		}
	}
}
