// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestWireRate sends more than a slow wire can carry at once, each way. What it
// holds is a lower bound: no load on the machine makes the wire faster.
func TestWireRate(t *testing.T) {
	s := store(t)
	for name, o := range map[string]lab.Options{
		"host": {Link: lab.LinkHost}, "bridge vxlan": {Link: "bridge", Overlay: lab.OverlayVXLAN},
		"ovs-veth": {Link: "ovs-veth"}, "macvlan": {Link: "macvlan"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Topology, o.WireRate = lab.TopologyTwoHosts, slowRate
			l := up(t, s, options(o))
			server, client := lab.HostA, lab.HostB
			if o.Link != lab.LinkHost {
				server, client = lab.PodA, lab.PodB
			}
			if took := roundTrip(t, l, [2]string{client, server}, slowPayload); took < slowTime {
				t.Errorf("%d bytes crossed a wire of %d bit/s in %v, which takes %v", slowPayload, slowRate, took, slowTime)
			}
		})
	}
}

// A slow wire carries slowPayload in slowTime at least: it takes slowBurst of it at once.
const (
	slowRate, slowPayload, slowBurst = 20_000_000, 1 << 20, 128 << 10

	slowTime = time.Duration(slowPayload-slowBurst) * 8 * time.Second / slowRate
)

// roundTrip returns the time that bytes take from the first of two places to the second and back.
func roundTrip(t *testing.T, l *lab.Lab, ends [2]string, size int) time.Duration {
	t.Helper()
	at := testkit.Echo(t, place(t, l, ends[1]), "tcp", netip.AddrPortFrom(lab.Addresses(l.Options, ends[1])[0],
		0).String())
	began := time.Now()
	_, err := testkit.RoundTrip(t, place(t, l, ends[0]), "tcp", at.String(), make([]byte, size))
	testkit.Require(t, err == nil, "%v", err)
	return time.Since(began)
}

// requireNetem skips the test if the kernel lacks netem. There, a lab with a delay must return an error that names
// netem, and leave nothing.
func requireNetem(t *testing.T, s lab.Store) {
	t.Helper()
	netem := rtnl.In(testkit.Namespace(t, "netem")).TryQdisc("netem")
	if errors.Is(netem, errors.ErrUnsupported) {
		o := options(lab.Options{Topology: lab.TopologyTwoHosts, Link: "bridge", WireDelay: time.Millisecond})
		_, err := s.Up(context.Background(), o)
		var unsupported *lab.UnsupportedError
		if !errors.As(err, &unsupported) || !errors.Is(err, errors.ErrUnsupported) || unsupported.Module != "sch_netem" {
			t.Errorf("error %v, want one that names what is missing", err)
		}
		left := leftovers(t, o.Name, s.Dir)
		testkit.Check(t, len(left) == 0, "left behind: %q", left)
	}
	testkit.RequireMode(t, netem)
}

const wireDelay = 100 * time.Millisecond // the delay of the wire in each direction

// TestWireDelay checks that packets take at least the delay in each direction, and that
// only the two ends of the wire delay packets.
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
			checkDelays(t, l, want > 0)
			for _, addr := range lab.Addresses(l.Options, server) {
				began := time.Now()
				err := testkit.Ping(place(t, l, client), addr, 8)
				testkit.Check(t, err == nil, "%v", err)
				took := time.Since(began)
				testkit.Check(t, took >= 2*want, "%v: there and back takes %v, want %v or more", addr, took, 2*want)
			}
		})
	}
}

// checkDelays checks that each end of the wire, and no other device, delays packets.
func checkDelays(t *testing.T, l *lab.Lab, want bool) {
	t.Helper()
	testkit.RequireTool(t, "tc")
	for _, name := range l.Places() {
		var out bytes.Buffer
		cmd := exec.Command("tc", "qdisc", "show")
		cmd.Stdout = &out
		testkit.Succeed(t, place(t, l, name).Start(cmd))
		testkit.Succeed(t, cmd.Wait())
		wantHere := 0
		if want && (name == lab.HostA || name == lab.HostB) {
			wantHere = 1
		}
		all, uplink := strings.Count(out.String(), "qdisc netem "), 0
		for line := range strings.Lines(out.String()) {
			if strings.HasPrefix(line, "qdisc netem ") && strings.Contains(line, " dev "+lab.Uplink+" ") {
				uplink++
			}
		}
		testkit.Check(t, all == wantHere && uplink == wantHere,
			"%s: %d netem queues, %d on the uplink, want %d:\n%s", name, all, uplink, wantHere, out.String())
	}
}

// TestCongestion connects in labs whose namespaces have another default, as on a machine that has it.
func TestCongestion(t *testing.T) {
	s := store(t)
	for name, row := range map[string]struct {
		options        lab.Options
		from, to, want string
	}{
		"pod-links":   {lab.Options{Link: "veth", Datapath: lab.DatapathEBPF}, lab.PodB, lab.PodA, lab.Congestion},
		"pod-to-host": {lab.Options{Topology: lab.TopologyPodToHost, Link: "bridge"}, lab.PodB, lab.HostA, lab.Congestion},
		"in a pod":    {lab.Options{Link: "veth"}, lab.PodB, lab.PodA, "reno"},
	} {
		t.Run(name, func(t *testing.T) {
			s.InPod = row.want != lab.Congestion
			l := up(t, s, options(row.options))
			from, to := place(t, l, row.from), place(t, l, row.to)
			testkit.Succeed(t, rtnl.In(from).SetSysctl("net/ipv4/tcp_congestion_control", "reno"))
			for _, addr := range lab.Addresses(l.Options, row.to) {
				server := testkit.Echo(t, to, "tcp", netip.AddrPortFrom(addr, 0).String())
				err := from.Do(func() error {
					conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", server.String())
					if err != nil {
						return err
					}
					defer conn.Close()
					raw, err := conn.(*net.TCPConn).SyscallConn()
					if err != nil {
						return err
					}
					return raw.Control(func(fd uintptr) {
						used, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
						testkit.Check(t, used == row.want, "connection to %v uses %q, %v", server, used, err)
					})
				})
				testkit.Check(t, err == nil, "%v", err)
			}
		})
	}
}
