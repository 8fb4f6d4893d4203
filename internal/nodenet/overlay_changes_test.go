// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/policy/manifest"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// flow is numbered datagrams from the first pod to the second, without an end.
type flow struct {
	t        testing.TB
	sent     atomic.Uint32 // the number of the last datagram; it may be on its way still
	received atomic.Uint32 // how many have arrived
	arrived  []atomic.Bool
}

func (o *overlay) flow(t testing.TB, family, most int) *flow {
	t.Helper()
	f := &flow{t: t, arrived: make([]atomic.Bool, most)}
	to := netip.AddrPortFrom(o.nodes[1].pods[family], 0).String()
	var server net.PacketConn
	o.must(o.nodes[1].pod.Do(func() (err error) { server, err = net.ListenPacket("udp", to); return err }))
	client := testkit.Must(testkit.Dial(o.nodes[0].pod, "udp", server.LocalAddr().String()))(t)
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for b := make([]byte, 4); ; {
			if _, _, err := server.ReadFrom(b); errors.Is(err, net.ErrClosed) {
				return
			}
			f.arrived[binary.BigEndian.Uint32(b)].Store(true)
			f.received.Add(1)
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		for n := range most {
			f.sent.Store(uint32(n))
			_, err := client.Write(binary.BigEndian.AppendUint32(nil, uint32(n)))
			if errors.Is(err, net.ErrClosed) { // other errors are ICMP's, or of the firewall
				return
			}
			time.Sleep(50 * time.Microsecond)
		}
	}()
	t.Cleanup(func() {
		_, _ = client.Close(), server.Close()
		<-done
		<-done
	})
	return f
}

// flows waits until datagrams arrive that are sent from now on.
func (f *flow) flows(what string) {
	f.t.Helper()
	from := f.sent.Load() + 1
	testkit.Eventually(f.t, time.Minute, func() error {
		if slices.ContainsFunc(numbers(from, f.sent.Load()), func(n uint32) bool { return f.arrived[n].Load() }) {
			return nil
		}
		return fmt.Errorf("%s: no datagram arrives", what)
	})
}

func numbers(from, to uint32) (all []uint32) {
	for n := from; n <= to; n++ {
		all = append(all, n)
	}
	return all
}

// state denies datagrams of the flow until undo, or changes their way.
type state struct {
	what    string
	denies  bool
	do, end func()
}

// TestRemoteChanges changes policies, endpoints and ways while datagrams flow. No datagram arrives that is sent after
// the command that denies it has returned.
func TestRemoteChanges(t *testing.T) {
	repeats := testkit.Repeats(4, 170)
	eachWay(t, func(t *testing.T, o *overlay, family int) {
		states := o.states(t, family)
		f := o.flow(t, family, 1<<22)
		type window struct {
			what     string
			from, to uint32
		}
		var denied []window
		for range repeats {
			for _, s := range states {
				f.flows("before " + s.what)
				s.do()
				from := f.sent.Load() + 1
				if s.denies {
					testkit.Eventually(t, time.Minute, func() error {
						if f.sent.Load() < from+100 { // the last ones may be on their way still
							return errors.New("nothing is sent")
						}
						return nil
					})
					denied = append(denied, window{s.what, from, from + 3})
				} else {
					f.flows("during " + s.what)
				}
				s.end()
			}
		}
		f.flows("at the end")
		for _, w := range denied {
			for _, n := range numbers(w.from, w.to) {
				testkit.Check(t, !f.arrived[n].Load(), "%s: datagram %d of %d to %d arrives", w.what, n, w.from, w.to)
			}
		}
		t.Logf("%d changes, %d datagrams, %d received; programs %+v", 2*repeats*len(states), f.sent.Load(),
			f.received.Load(), o.counts(1))
	})
}

func (o *overlay) states(t *testing.T, family int) []state {
	ctx := t.Context()
	spec := func(i int, addresses ...netip.Addr) datapath.EndpointSpec {
		n := o.nodes[i]
		return datapath.EndpointSpec{Namespace: n.pod, IfName: "eth0", Host: n.ns, Addresses: addresses,
			Pod: &policy.Pod{Namespace: "default", Name: n.Name}}
	}
	put := func(i int, addresses ...netip.Addr) {
		_, _, err := o.datapaths[i].Endpoints().Put(ctx, spec(i, addresses...))
		testkit.Succeed(t, err)
	}
	put(0, o.nodes[0].pods...)
	put(1, o.nodes[1].pods...)
	other := []netip.Addr{o.nodes[0].pods[1-family]}
	egress, egressEnd := o.deny(0, "Egress")
	ingress, ingressEnd := o.deny(1, "Ingress")
	ways := testkit.Must(o.datapaths[0].Remotes().List())(t)
	return []state{
		{"a policy of the sender", true, egress, egressEnd},
		{"a policy of the receiver", true, ingress, ingressEnd},
		{"an address that the pod lacks", true, func() { put(0, other...) }, func() { put(0, o.nodes[0].pods...) }},
		{"a receiver that is no endpoint", false, func() {
			testkit.Succeed(t, o.datapaths[1].Endpoints().DeleteDevice(ctx, spec(1)))
		}, func() { put(1, o.nodes[1].pods...) }},
		{"no way", false, func() { testkit.Must(o.datapaths[0].Remotes().Apply(ctx, nil))(t) },
			func() { testkit.Must(o.datapaths[0].Remotes().Apply(ctx, ways))(t) }},
	}
}

// deny returns functions that write and delete a policy of a node that isolates its pod.
func (o *overlay) deny(i int, kinds string) (do, end func()) {
	set := testkit.Must(manifest.Read(strings.NewReader("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, " +
		"metadata: {name: deny}, spec: {podSelector: {}, policyTypes: [" + kinds + "]}}")))(o.t)
	apply := func(s policies.Set) func() {
		return func() { testkit.Must(o.datapaths[i].Policies().Apply(o.t.Context(), service.CLI, s))(o.t) }
	}
	return apply(policies.Set{Snapshot: set.Snapshot}), apply(policies.Set{})
}

// TestRemoteForeign sends from an allowed address of a pod, with and without a policy in force. The host's stack has to
// carry all of these packets.
func TestRemoteForeign(t *testing.T) {
	o := newOverlay(t, way{routing: VXLAN})
	from, to := o.nodes[0], net.UDPAddrFromAddrPort(netip.AddrPortFrom(o.nodes[1].pods[0], 9))
	foreign := netip.MustParseAddr("10.99.0.7")
	o.ip(from.pod, "addr add 10.99.0.7/32 dev eth0")
	_, _, err := o.datapaths[0].Endpoints().Put(t.Context(), datapath.EndpointSpec{Namespace: from.pod, IfName: "eth0",
		Host: from.ns, Addresses: from.pods, Allowed: []netip.Prefix{netip.PrefixFrom(foreign, 32)},
		Pod: &policy.Pod{Namespace: "default", Name: from.Name}})
	o.must(err)
	isolate, end := o.deny(0, "Ingress")
	none := func() {}
	for _, s := range []state{{what: "no policy", do: none, end: none}, {what: "a policy", do: isolate, end: end}} {
		s.do()
		before := o.counts(0)
		o.must(from.pod.Do(func() error {
			c, err := net.ListenPacket("udp", netip.AddrPortFrom(foreign, 0).String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.WriteTo([]byte("x"), to)
			return err
		}))
		testkit.Eventually(t, time.Minute, func() error {
			if now := o.counts(0); now.forwarded == before.forwarded || now.sent != before.sent {
				return fmt.Errorf("%s: before %+v, now %+v", s.what, before, now)
			}
			return nil
		})
		s.end()
	}
}

// TestRemoteNodes has a node get another MAC address, go, and come back.
func TestRemoteNodes(t *testing.T) {
	eachWay(t, func(t *testing.T, o *overlay, family int) {
		first, second := o.nodes[0], o.nodes[1]
		f := o.flow(t, family, 1<<22)
		f.flows("first")
		for _, key := range []string{"net/ipv4/conf/eth0/arp_notify", "net/ipv6/conf/eth0/ndisc_notify"} {
			o.must(rtnl.In(second.ns).SetSysctl(key, "1"))
		}
		o.ip(second.ns, fmt.Sprintf("link set eth0 address 02:00:00:00:%02x:%02x", family, len(o.t.Name())&0xff))
		f.flows("another MAC address")
		before := o.counts(0)
		f.flows("by programs")
		testkit.Check(t, o.counts(0).sent > before.sent, "the programs no longer send")

		o.must(first.network.Apply(first.Node, nil))
		gone := f.sent.Load() + 1
		testkit.Check(t, len(testkit.Must(o.datapaths[0].Remotes().List())(t)) == 0, "there are ways to a node that is gone")
		testkit.Eventually(t, time.Minute, func() error {
			if f.sent.Load() < gone+10 {
				return errors.New("nothing is sent")
			}
			return nil
		})
		for _, n := range numbers(gone, f.sent.Load()) {
			testkit.Check(t, !f.arrived[n].Load(), "datagram %d reaches a node that is gone", n)
		}
		o.must(first.network.Apply(first.Node, o.others(first)))
		f.flows("the node is back")
	})
}

// TestRemoteHalf has programs serve one of two pods, whose hosts drop what connection tracking takes for half a flow.
// The ends of connections that began the other way are dropped too.
func TestRemoteHalf(t *testing.T) {
	testkit.RequireTool(t, "nft")
	eachWay(t, func(t *testing.T, o *overlay, family int) {
		if family == 0 {
			for _, n := range o.nodes {
				o.run(n.ns, "nft add table inet strict")
				o.run(n.ns, "nft add chain inet strict forward { type filter hook forward priority 0 ; }")
				o.run(n.ns, "nft add rule inet strict forward ct state invalid drop")
			}
		}
		for i, n := range o.nodes {
			spec := datapath.EndpointSpec{Namespace: n.pod, IfName: "eth0", Host: n.ns}
			o.must(o.datapaths[i].Endpoints().DeleteDevice(t.Context(), spec))
			o.exchange(family)
			for _, spec.Shaped = range []bool{true, false} { // packets to a shaped pod pass its device
				_, _, err := o.datapaths[i].Endpoints().Put(t.Context(), spec)
				o.must(err)
				o.exchange(family)
			}
			uplink := testkit.Must(datapath.FindUplink(n.ns, "eth0"))(t)
			o.must(o.datapaths[i].Uplinks().Delete(t.Context(), uplink))
			o.exchange(family)
			testkit.Must(o.datapaths[i].Uplinks().Put(t.Context(), n.ns, "eth0"))(t)
		}
	})
}
