// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestPoliciesBeforeConnections has root in a pod send packets as if they belonged to a connection older than the
// policies, with the pod as the server. They pass if the other end has the only ephemeral port.
func TestPoliciesBeforeConnections(t *testing.T) {
	n, d := bridged(t), openTest(t)
	n.labelled(t, d)
	applyPolicies(t, d, denyIngressA)
	for port, want := range map[int]uint64{40000: 0, 9100: 2} {
		t.Run(fmt.Sprint(port), func(t *testing.T) {
			before := counts(t, d)
			for _, flags := range []uint8{flagACK, flagSYN | flagACK} {
				succeed(t, sendRawFrom(n.pods[1], packet{src: netip.MustParseAddrPort(podB4 + ":80"), proto: protoTCP,
					dst: netip.AddrPortFrom(netip.MustParseAddr(podA4), uint16(port)), flags: flags, payload: "data"}))
			}
			testkit.Eventually(t, 5*time.Second, func() error {
				if now := counts(t, d); now["from_pod"] < before["from_pod"]+2 {
					return errors.New("the packets have not come")
				}
				return nil
			})
			equal(t, delta(t, d, before)["drop_policy_ingress"], want, "packets dropped")
		})
	}
}

// TestServerRevivesNothing ends a connection by a policy, and has its row go: further packets of the server do not
// open it again, though the server may open connections.
func TestServerRevivesNothing(t *testing.T) {
	for _, port := range []int{20000, 40000} {
		testForgotten(t, port, func(t *testing.T, n network, d *Datapath, server netip.AddrPort, _ net.Conn) {
			applyPolicies(t, d, denyIngressA)
			before := counts(t, d)
			more := packet{src: server, dst: netip.MustParseAddrPort(fmt.Sprint(podB4, ":", port)), proto: protoTCP,
				flags: flagACK, payload: "more"}
			succeed(t, sendRawFrom(n.pods[0], more))
			awaitCount(t, d, before, "drop_policy_ingress")
		})
	}
}

// TestForgottenGoOn deletes the row of a connection that policies allow only in the direction in which it was opened.
// If the client has an ephemeral port, it goes on, whichever end sends first.
func TestForgottenGoOn(t *testing.T) {
	testForgotten(t, 40000, func(t *testing.T, n network, d *Datapath, server netip.AddrPort, conn net.Conn) {
		before := counts(t, d)
		succeed(t, sendRawFrom(n.pods[0], packet{src: server, dst: netip.MustParseAddrPort(podB4 + ":40000"), proto: protoTCP,
			flags: flagACK}))
		noError(t, exchanged(conn))
		got := delta(t, d, before)
		failIf(t, got["drop_policy_ingress"]+got["drop_policy_egress"] > 0, "%v", got)
	})
}

// testForgotten opens a connection from a port of pod b to pod a, and deletes its row. Pod a has joined with a policy
// that lets b in and lets a open no connections.
func testForgotten(t *testing.T, port int, then func(t *testing.T, n network, d *Datapath, server netip.AddrPort,
	conn net.Conn)) {
	t.Run(fmt.Sprint("port ", port), func(t *testing.T) {
		n, d := bridged(t), openTest(t)
		applyPolicies(t, d, fromBToA, denyEgressA)
		n.labelled(t, d)
		server := testkit.Echo(t, n.pods[0], "tcp", net.JoinHostPort(podA4, "9100"))
		conn := dialFrom(t, n.pods[1], netip.AddrPortFrom(netip.Addr{}, uint16(port)), "tcp", server)
		succeed(t, exchanged(conn))
		must(d.objects.EndConnections(func(objects.Slot) bool { return true }))(t)
		then(t, n, d, server, conn)
	})
}

// sendRawFrom has a pod send an IPv4 packet by a raw socket.
func sendRawFrom(pod *netns.Namespace, p packet) error {
	return socketKind{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}.with(pod, func(fd int) error {
		return unix.Sendto(fd, p.frame()[14:], 0, &unix.SockaddrInet4{Addr: p.dst.Addr().As4()})
	})
}

// socketKind has the arguments of socket(2).
type socketKind struct{ domain, kind, proto int }

// with calls fn with a socket that was made in a namespace, and closes it.
func (k socketKind) with(ns *netns.Namespace, fn func(fd int) error) error {
	return ns.Do(func() error {
		fd, err := unix.Socket(k.domain, k.kind|unix.SOCK_CLOEXEC, k.proto)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return fn(fd)
	})
}

// testNodeRefuses connects pods to a port of the node without a listener. The node's kernel answers without a socket;
// the answer arrives while a policy of one of them is in force.
func testNodeRefuses(t *testing.T, n network, d *Datapath, f family) {
	applyPolicies(t, d, onlyOutsideToA)
	defer applyPolicies(t, d)
	for _, pod := range n.pods {
		failsWith(t, errOf(testkit.Dial(pod, "tcp", net.JoinHostPort(f.gateway, "1"))), unix.ECONNREFUSED, "%s", pod.Name())
	}
}

// exchanged returns an error unless what it sends comes back.
func exchanged(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := conn.Write([]byte("open")); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err
}

// testPoliciesOfOpen opens TCP connections before the first policy: allowed connections live on, and denied ones end.
func testPoliciesOfOpen(t *testing.T, n network, d *Datapath, f family) {
	defer applyPolicies(t, d)
	server := testkit.Echo(t, n.pods[0], "tcp", net.JoinHostPort(f.pod, "10000"))
	client := map[string]uint16{podA4: 40000, podA6: 40100}[f.pod] // sockets of both families share their ports
	open := func() net.Conn {
		client++
		conn := dialFrom(t, n.pods[1], netip.AddrPortFrom(netip.Addr{}, client), "tcp", server)
		succeed(t, exchanged(conn))
		return conn
	}
	ends := func(conn net.Conn, reason string) {
		t.Helper()
		before := counts(t, d)
		must(conn.Write([]byte("more")))(t)
		awaitCount(t, d, before, reason)
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		n, _ := conn.Read(make([]byte, 4))
		testkit.Check(t, n <= 0, "%s, but there is an answer", reason)
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
	lives := func(conn net.Conn) {
		t.Helper()
		noError(t, exchanged(conn))
	}
	applyPolicies(t, d)
	conn := open()
	applyPolicies(t, d, fromBToA)
	lives(conn)
	applyPolicies(t, d, denyIngressA)
	ends(conn, "drop_policy_ingress")
	for _, c := range []struct{ policy, reason string }{{denyIngressA, "drop_policy_ingress"},
		{denyEgressB, "drop_policy_egress"}, {denyEgressA, ""}} {
		applyPolicies(t, d)
		conn := open()
		if applyPolicies(t, d, c.policy); c.reason == "" {
			lives(conn)
		} else {
			ends(conn, c.reason)
		}
	}
}

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

func (n network) allowB(t *testing.T, d *Datapath) {
	t.Helper()
	n.run(t, "-n PODB addr add 192.168.77.7/32 dev eth0")
	spec := n.attachment(1)
	spec.Allowed = []netip.Prefix{netip.MustParsePrefix("192.168.77.7/32")}
	spec.Pod = labelledPod("b")
	must2(d.Endpoints().Put(t.Context(), spec))(t)
}

// TestListenOnOwnPort has a pod connect from a port, and then listen on it: it is the client all the same when its
// first policy comes.
func TestListenOnOwnPort(t *testing.T) {
	for _, port := range []int{5000, 40000} {
		n, d := routed(t), openTest(t)
		n.labelled(t, d)
		server := testkit.Echo(t, n.pods[0], "tcp", net.JoinHostPort(podA4, "9100"))
		both := place{ns: n.pods[1]}.openAll(t, make([]*socketFD, 2), false, unix.SOCK_STREAM)
		for i, s := range both {
			succeed(t, errors.Join(unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
				unix.Bind(s.fd, &unix.SockaddrInet4{Port: port})))
			if i == 0 {
				s.mustConnect(server)
			}
		}
		succeed(t, unix.Listen(both[1].fd, 1))
		applyPolicies(t, d, denyEgressB)
		before := counts(t, d)
		both[0].mustSend("more", netip.AddrPort{})
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
			failIf(t, connectFrom(n.pods[1], from.WithZone("eth0"), server) == nil, "connected")
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

// TestEventsHaveOwnAddresses has a pod send from addresses for which policies judge another address of the pod, to a
// service, to a pod and to a group. Events must have the packet's address.
func TestEventsHaveOwnAddresses(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.labelled(t, d)
	n.allowB(t, d)
	direct, frontend := netip.MustParseAddrPort(podA4+":9000"), netip.MustParseAddrPort("10.96.0.10:80")
	putService(t, d, newService(service.UDP, frontend.String(), direct.String()))
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
	// The function sends until the next event of the packet's port, which must have the verdict and the packet's source.
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
					testkit.Check(t, e.Verdict == verdict && e.Source == p.src,
						"%s %s > %s, want %s from %s", e.Verdict, e.Source, e.Destination, verdict, p.src)
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
	applyPolicies(t, d, denyEgressA) // so that packets to a are tracked
	raw(flows.Made, from(7000, direct))
	raw(flows.Made, from(7001, frontend))
	applyPolicies(t, d, denyEgressB)
	raw(flows.Denied, from(7000, direct))   // of a connection from before the policy
	raw(flows.Denied, from(7001, frontend)) // the same
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
