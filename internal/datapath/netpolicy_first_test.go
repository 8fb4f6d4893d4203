// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// TestPoliciesBeforeConnections has root in a pod send packets as if they were of a connection that is older than the
// policies, in which the pod is the server. They pass if the other end has the only ephemeral port.
func TestPoliciesBeforeConnections(t *testing.T) {
	n, d := bridged(t), openTest(t)
	n.labelled(t, d)
	applyPolicies(t, d, denyIngressA)
	for port, want := range map[int]uint64{40000: 0, 9100: 2} {
		t.Run(fmt.Sprint(port), func(t *testing.T) {
			before := counts(t, d)
			for _, flags := range []uint8{flagACK, flagSYN | flagACK} {
				sendRaw(t, n, packet{src: netip.MustParseAddrPort(podB4 + ":80"),
					dst: netip.AddrPortFrom(netip.MustParseAddr(podA4), uint16(port)), proto: protoTCP, flags: flags, payload: "data"})
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

// TestServerRevivesNothing ends a connection by a policy, and has its row go: what the server still sends does not
// begin it anew, though the server may open connections.
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

// TestForgottenGoOn has the row of a connection go that policies allow in the direction in which it was opened alone.
// It goes on if the client has an ephemeral port, whoever speaks first.
func TestForgottenGoOn(t *testing.T) {
	testForgotten(t, 40000, func(t *testing.T, n network, d *Datapath, server netip.AddrPort, conn net.Conn) {
		before := counts(t, d)
		succeed(t, sendRawFrom(n.pods[0], packet{src: server, dst: netip.MustParseAddrPort(podB4 + ":40000"), proto: protoTCP,
			flags: flagACK}))
		noError(t, exchanged(conn))
		if d := delta(t, d, before); d["drop_policy_ingress"]+d["drop_policy_egress"] > 0 {
			t.Errorf("%v", d)
		}
	})
}

// testForgotten opens a connection from a port of pod b to pod a, which joined with a policy that lets b in and a open
// none, and has its row go.
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

// sendRaw has pod b send an IPv4 packet by a raw socket.
func sendRaw(t *testing.T, n network, p packet) {
	t.Helper()
	succeed(t, sendRawFrom(n.pods[1], p))
}

func sendRawFrom(pod *netns.Namespace, p packet) error {
	return pod.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, p.frame()[14:], 0, &unix.SockaddrInet4{Addr: p.dst.Addr().As4()})
	})
}

// testNodeRefuses connects pods to a port of the node that nobody listens on: what the node's kernel answers without a
// socket arrives, while a policy of one of them is in force.
func testNodeRefuses(t *testing.T, n network, d *Datapath) {
	applyPolicies(t, d, onlyOutsideToA)
	defer applyPolicies(t, d)
	for _, node := range []string{gateway4, gateway6} {
		for _, pod := range n.pods {
			failsWith(t, errOf(testkit.Dial(pod, "tcp", net.JoinHostPort(node, "1"))), unix.ECONNREFUSED, "%s to %s",
				pod.Name(), node)
		}
	}
}

// sendXDP sends a frame by an AF_XDP socket, which skips the queue of the device and its programs.
func sendXDP(ns *netns.Namespace, index int, frame []byte) error {
	return ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		const size = 4096
		memory, err := unix.Mmap(-1, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(memory) }()
		copy(memory, frame)
		area := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&memory[0]))), Len: 2 * size, Size: size}
		if _, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
			uintptr(unsafe.Pointer(&area)), unsafe.Sizeof(area), 0); errno != 0 {
			return errno
		}
		for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_TX_RING} {
			if err := unix.SetsockoptInt(fd, unix.SOL_XDP, ring, 8); err != nil {
				return err
			}
		}
		var offsets unix.XDPMmapOffsets
		length := uint32(unsafe.Sizeof(offsets))
		if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_MMAP_OFFSETS,
			uintptr(unsafe.Pointer(&offsets)), uintptr(unsafe.Pointer(&length)), 0); errno != 0 {
			return errno
		}
		ring, err := unix.Mmap(fd, unix.XDP_PGOFF_TX_RING, int(offsets.Tx.Desc)+8*16, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(ring) }()
		// The kernel takes a while to forget the last socket of a queue.
		to := &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(index)}
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if err = unix.Bind(fd, to); !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				break
			}
		}
		if err != nil {
			return err
		}
		binary.NativeEndian.PutUint32(ring[offsets.Tx.Desc+8:], uint32(len(frame)))
		binary.NativeEndian.PutUint32(ring[offsets.Tx.Producer:], 1)
		return unix.Send(fd, nil, unix.MSG_DONTWAIT)
	})
}

func exchanged(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write([]byte("open")); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err
}

// testPoliciesOfOpen opens TCP connections before the first policy: what the policy allows lives on, and what it denies
// ends.
func testPoliciesOfOpen(t *testing.T, n network, d *Datapath) {
	defer applyPolicies(t, d)
	client := uint16(40000)
	for _, f := range families() {
		t.Run(f.name, func(t *testing.T) {
			server := testkit.Echo(t, n.pods[0], "tcp", net.JoinHostPort(f.pod, "10000"))
			testOpenConnections(t, d, func() net.Conn {
				client++
				conn := dialFrom(t, n.pods[1], netip.AddrPortFrom(netip.Addr{}, client), "tcp", server)
				succeed(t, exchanged(conn))
				return conn
			})
		})
	}
}

func testOpenConnections(t *testing.T, d *Datapath, open func() net.Conn) {
	ends := func(conn net.Conn, reason string) {
		t.Helper()
		before := counts(t, d)
		must(conn.Write([]byte("more")))(t)
		awaitCount(t, d, before, reason)
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if n, _ := conn.Read(make([]byte, 4)); n > 0 {
			t.Errorf("%s, but there is an answer", reason)
		}
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
