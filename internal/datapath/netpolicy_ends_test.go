// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/flows"
	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// linkLocalOf returns the link-local address of a pod's device, and the device's index.
func linkLocalOf(t *testing.T, ns *netns.Namespace) (local netip.Addr, index int) {
	t.Helper()
	testkit.Eventually(t, 10*time.Second, func() error {
		return ns.Do(func() error {
			device, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			index = device.Index
			addrs, err := device.Addrs()
			for _, a := range addrs {
				if ip, ok := netip.AddrFromSlice(a.(*net.IPNet).IP); ok && ip.IsLinkLocalUnicast() && ip.Is6() {
					local = ip
					return nil
				}
			}
			return errors.Join(err, errors.New("no link-local address"))
		})
	})
	return local, index
}

// connectFrom opens a TCP connection from an address, of a zone if it is link-local.
func connectFrom(ns *netns.Namespace, from netip.Addr, to netip.AddrPort) error {
	return ns.Do(func() error {
		dialer := net.Dialer{Timeout: time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		conn, err := dialer.Dial("tcp", to.String())
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// allowB gives pod b another address, which it is allowed.
func (n network) allowB(t *testing.T, d *Datapath) {
	t.Helper()
	n.run(t, "-n PODB addr add 192.168.77.7/32 dev eth0")
	spec := n.attachment(1)
	spec.Allowed = []netip.Prefix{netip.MustParsePrefix("192.168.77.7/32")}
	spec.Pod = &policy.Pod{Namespace: "default", Name: "b", Labels: map[string]string{"app": "b"}}
	must2(d.Endpoints().Put(t.Context(), spec))(t)
}

// TestListenOnOwnPort has a pod connect from a port, and then listen on it: it is the client all the same when its
// first policy comes.
func TestListenOnOwnPort(t *testing.T) {
	for _, port := range []int{5000, 40000} {
		n, d := routed(t), openTest(t)
		n.labelled(t, d)
		server := testkit.Echo(t, n.pods[0], "tcp", net.JoinHostPort(podA4, "9100"))
		var connected, listening int
		err := n.pods[1].Do(func() error {
			var errs []error
			for _, fd := range []*int{&connected, &listening} {
				var err error
				*fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err == nil {
					err = errors.Join(unix.SetsockoptInt(*fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
						unix.Bind(*fd, &unix.SockaddrInet4{Port: port}))
				}
				if err == nil && fd == &connected {
					err = unix.Connect(*fd, &unix.SockaddrInet4{Port: int(server.Port()), Addr: server.Addr().As4()})
				}
				errs = append(errs, err)
			}
			return errors.Join(append(errs, unix.Listen(listening, 1))...)
		})
		t.Cleanup(func() { _, _ = unix.Close(connected), unix.Close(listening) })
		succeed(t, err)
		applyPolicies(t, d, denyEgressB)
		before := counts(t, d)
		must(unix.Write(connected, []byte("more")))(t)
		awaitCount(t, d, before, "drop_policy_egress")
	}
}

// TestDenyByLabelOnLink has a pod that a rule denies by its labels call another pod's link-local address from its own.
func TestDenyByLabelOnLink(t *testing.T) {
	const quarantine = `{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: ` +
		`quarantine}, spec: {tier: Admin, priority: 1,
subject: {namespaces: {}}, %s: [{action: Deny, %s: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: %s}}}}]}]}}`
	for _, c := range []struct{ direction, peer, label, reason string }{
		{"ingress", "from", "b", "drop_policy_ingress"}, {"egress", "to", "a", "drop_policy_egress"},
	} {
		t.Run(c.direction, func(t *testing.T) {
			n, d := bridged(t), openTest(t)
			n.labelled(t, d)
			to, _ := linkLocalOf(t, n.pods[0])
			from, _ := linkLocalOf(t, n.pods[1])
			server := netip.AddrPortFrom(to.WithZone("eth0"), testkit.Echo(t, n.pods[0], "tcp",
				net.JoinHostPort("::", "0")).Port())
			testkit.Eventually(t, 30*time.Second, func() error { return connectFrom(n.pods[1], from.WithZone("eth0"), server) })
			applyPolicies(t, d, fmt.Sprintf(quarantine, c.direction, c.peer, c.label))
			before := counts(t, d)
			if err := connectFrom(n.pods[1], from.WithZone("eth0"), server); err == nil {
				t.Error("connected")
			}
			failIf(t, delta(t, d, before)[c.reason] == 0, "nothing is dropped")
		})
	}
}

// TestLinkLocalOfNode has root of a pod take a link-local address of the host before the pod becomes an endpoint:
// policies come in force.
func TestLinkLocalOfNode(t *testing.T) {
	n, d := routed(t), openTest(t)
	local, _ := linkLocalOf(t, n.pods[1])
	n.run(t, "-n HOST addr add "+local.String()+"/64 dev lo")
	n.labelled(t, d)
	applyPolicies(t, d, denyIngressA)
}

// TestEventsHaveOwnAddresses has a pod send from addresses for which policies judge another one of its own, to a
// service, to a pod and to a group: what is told has the packet's address.
func TestEventsHaveOwnAddresses(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.labelled(t, d)
	n.allowB(t, d)
	direct, frontend := netip.MustParseAddrPort(podA4+":9000"), netip.MustParseAddrPort("10.96.0.10:80")
	s := service.Service{Frontend: frontend, Protocol: service.UDP, Backends: service.Backends(direct)}
	putService(t, d, s)
	from := func(port uint16, dst netip.AddrPort) packet {
		allowed := netip.MustParseAddr("192.168.77.7")
		return packet{src: netip.AddrPortFrom(allowed, port), dst: dst, proto: protoUDP, payload: "x"}
	}
	told := make(chan flows.Event, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		each := func(e flows.Event) error { told <- e; return nil }
		noError(t, d.Flows().Watch(ctx, each, func(uint64) error { return nil }, flows.Denied, flows.Made))
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	testkit.Eventually(t, 20*time.Second, func() error {
		row, err := d.objects.NodeState.Map.LookupBytes(uint32(0))
		if err != nil || binary.NativeEndian.Uint64(row[16:]) == 0 { // until when
			return fmt.Errorf("nobody watches; %w", err)
		}
		return nil
	})
	// wants sends until the next event of the packet's port, which is to have the verdict and the packet's source.
	wants := func(verdict flows.Verdict, p packet, send func() error) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() error {
			if err := send(); err != nil {
				return err
			}
			for {
				select {
				case e := <-told:
					if e.Source.Port() != p.src.Port() {
						continue
					}
					if e.Verdict != verdict || e.Source != p.src {
						t.Errorf("%s %s > %s, want %s from %s", e.Verdict, e.Source, e.Destination, verdict, p.src)
					}
					return nil
				case <-time.After(50 * time.Millisecond):
					return fmt.Errorf("nothing is told of %s > %s", p.src, p.dst)
				}
			}
		})
	}
	raw := func(verdict flows.Verdict, p packet) {
		t.Helper()
		wants(verdict, p, func() error { return sendRawFrom(n.pods[1], p) })
	}
	applyPolicies(t, d, denyEgressA) // so that what goes to a is tracked
	raw(flows.Made, from(7000, direct))
	raw(flows.Made, from(7001, frontend))
	applyPolicies(t, d, denyEgressB)
	raw(flows.Denied, from(7000, direct))   // of a connection from before the policy
	raw(flows.Denied, from(7001, frontend)) // likewise
	raw(flows.Denied, from(7002, direct))
	raw(flows.Denied, from(7003, frontend))
	raw(flows.Denied, packet{src: netip.MustParseAddrPort(podB4 + ":7004"), dst: direct, proto: protoUDP, payload: "x"})

	local, index := linkLocalOf(t, n.pods[1])
	device := must(rtnl.In(n.pods[1]).Device("eth0"))(t)
	p := packet{src: netip.AddrPortFrom(local, 5353), dst: netip.MustParseAddrPort("[ff02::fb]:5353"), proto: protoUDP,
		payload: "x"}
	wants(flows.Denied, p, func() error {
		by := sender{ns: n.pods[1], index: index, mac: device.MAC, next: net.HardwareAddr{0x33, 0x33, 0, 0, 0, 0xfb}}
		return by.raw(by.frame(p))
	})
}
