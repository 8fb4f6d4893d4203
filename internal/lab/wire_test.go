// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/nl"
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

// requireNetem skips the test where the kernel has no netem. There, a lab with a
// delay must say so, and leave nothing.
func requireNetem(t *testing.T, s lab.Store) {
	t.Helper()
	netem := testkit.Namespace(t, "netem").TryQdisc("netem")
	if errors.Is(netem, errors.ErrUnsupported) {
		o := options(lab.Options{Topology: lab.TopologyTwoHosts, Link: "bridge", WireDelay: time.Millisecond})
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
}

// wireDelay is long, since an emulated machine adds a tenth of a second of its own.
const wireDelay = 400 * time.Millisecond

// TestWireDelay measures what a delay adds to each way across the wire, and to
// there and back: once each way, neither less nor twice.
func TestWireDelay(t *testing.T) {
	s := store(t)
	requireNetem(t, s)
	for name, o := range map[string]lab.Options{
		"host":        {Link: lab.LinkHost},
		"bridge":      {Link: "bridge", WireRate: 100_000_000},
		"bridge nat":  {Topology: lab.TopologyPodToHost, Link: "bridge", NAT: true},
		"ovs-veth":    {Link: "ovs-veth"},
		"vxlan":       {Link: "bridge", Overlay: lab.OverlayVXLAN},
		"macvlan":     {Link: "macvlan"},
		"without any": {Link: lab.LinkHost},
	} {
		t.Run(name, func(t *testing.T) {
			want := wireDelay
			if name == "without any" {
				want = 0
			}
			if o.Topology == "" {
				o.Topology = lab.TopologyTwoHosts
			}
			o.WireDelay = want
			l := up(t, s, options(o))
			server, client := lab.HostA, lab.HostB
			if o.Link != lab.LinkHost {
				client = lab.PodB
			}
			if o.Link != lab.LinkHost && !o.NAT {
				server = lab.PodA
			}
			near, far := place(t, l, client), place(t, l, server)
			for i, addr := range lab.Addresses(l.Options, server) {
				wantDelay(t, "there and back", 2*want, func() error { return testkit.Ping(near, addr, 8) })
				forth := newSignal(t, near, far, addr)
				wantDelay(t, "there", want, forth.cross)
				if !o.NAT {
					back := newSignal(t, far, near, lab.Addresses(l.Options, client)[i])
					wantDelay(t, "back", want, back.cross)
				}
			}
		})
	}
}

// wantDelay wants something to take that time, and less than another delay longer.
// Of several tries the quickest counts: what comes on top of the wire is not always
// there.
func wantDelay(t *testing.T, what string, want time.Duration, try func() error) {
	t.Helper()
	least := time.Hour
	for range 5 {
		began := time.Now()
		if err := try(); err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		if least = min(least, time.Since(began)); least < want+wireDelay {
			break
		}
	}
	t.Logf("%s takes %v", what, least)
	if least < want || least >= want+wireDelay {
		t.Errorf("%s takes %v, want %v to %v", what, least, want, want+wireDelay)
	}
}

// signal crosses from one namespace to another in a datagram.
type signal struct {
	out net.Conn
	in  net.PacketConn
}

func newSignal(t *testing.T, from, to *nl.Namespace, addr netip.Addr) (s signal) {
	t.Helper()
	err := to.Do(func() (err error) {
		s.in, err = net.ListenPacket("udp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.in.Close() })
	if s.out, err = testkit.Dial(from, "udp", s.in.LocalAddr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.out.Close() })
	return s
}

// cross returns when the signal is there.
func (s signal) cross() error {
	if _, err := s.out.Write([]byte("now")); err != nil {
		return err
	}
	if err := s.in.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	_, _, err := s.in.ReadFrom(make([]byte, 16))
	return err
}
