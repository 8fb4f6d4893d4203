// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/nodenet"
	"mustang/internal/pathprobe"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// Frame offsets in bytes: of IPv4, of UDP in it, and of IPv4 in VXLAN.
const (
	atIP    = 14
	atUDP   = atIP + 20
	atInner = atUDP + 8 + 8 + 14
)

// wire joins two nodes by a namespace between them, where user space forwards their frames. The nodes' devices, eth0
// with an MTU of 1500, have no offloads: frames are complete.
type wire struct {
	nodes     [2]*netns.Namespace
	addresses [2]netip.Addr
}

// frameEdit returns what a wire forwards for a frame of a node, 0 or 1; nil: nothing.
type frameEdit func(from int, frame []byte) []byte

// newWire makes a wire between 192.0.2.1 and 192.0.2.2 or, with v6, 2001:db8::1 and 2001:db8::2. Each frame passes
// the edits.
func newWire(t testing.TB, v6 bool, edits ...frameEdit) wire {
	t.Helper()
	w := wire{addresses: [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}}
	if v6 {
		w.addresses = [2]netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")}
	}
	middle := testkit.Namespace(t, "wire")
	var ports [2]int
	for i, address := range w.addresses {
		w.nodes[i] = testkit.Namespace(t, "node")
		port := []string{"port1", "port2"}[i]
		testkit.Succeed(t, rtnl.AddVeth(rtnl.VethEnd{Namespace: w.nodes[i], Name: "eth0"},
			rtnl.VethEnd{Namespace: middle, Name: port}, 1500))
		in := rtnl.In(w.nodes[i])
		testkit.Succeed(t, in.DisableOffloads("eth0"))
		testkit.Succeed(t, in.Configure("eth0", rtnl.DeviceConfig{Up: true,
			Addresses: []netip.Prefix{netip.PrefixFrom(address, address.BitLen()-8)}}))
		ports[i] = packetSocket(t, middle, port)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var forwarders sync.WaitGroup
	for from := range ports {
		forwarders.Go(func() { forward(ctx, from, ports, edits) })
	}
	t.Cleanup(func() { // before the sockets are closed
		cancel()
		forwarders.Wait()
	})
	return w
}

func forward(ctx context.Context, from int, ports [2]int, edits []frameEdit) {
	buffer := make([]byte, 1<<16)
	for ctx.Err() == nil {
		n, _, err := unix.Recvfrom(ports[from], buffer, 0)
		if err != nil {
			continue // the time-out
		}
		frame := buffer[:n]
		for _, edit := range edits {
			if frame != nil {
				frame = edit(from, frame)
			}
		}
		if frame != nil {
			_, _ = unix.Write(ports[1-from], frame)
		}
	}
}

func packetSocket(t testing.TB, ns *netns.Namespace, device string) (fd int) {
	t.Helper()
	link := testkit.Must(rtnl.In(ns).Device(device))(t)
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL})
	testkit.Succeed(t, ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}))
	}))
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// dropLarger drops packets of more than size bytes without an ICMP error, from a node or, for -1, from both.
func dropLarger(size, node int) frameEdit {
	return func(from int, frame []byte) []byte {
		if (node < 0 || from == node) && len(frame) > atIP+size {
			return nil
		}
		return frame
	}
}

// spoilChecksums does what a device with a broken checksum offload does: TCP checksums are wrong in a node's VXLAN
// packets over IPv4, if these have at least so many bytes. The outer checksum is left out or, if both, wrong.
func spoilChecksums(node, least int, both bool) frameEdit {
	return func(from int, frame []byte) []byte {
		if from == node && len(frame) >= max(least, atInner+40) && frame[atIP+9] == unix.IPPROTO_UDP &&
			binary.BigEndian.Uint16(frame[atUDP+2:]) == nodenet.DefaultPort && frame[atInner+9] == unix.IPPROTO_TCP {
			if frame[atInner+20+16] ^= 0x55; !both {
				frame[atUDP+6], frame[atUDP+7] = 0, 0
			}
		}
		return frame
	}
}

// dropTunnel drops VXLAN packets over IPv4.
func dropTunnel(_ int, frame []byte) []byte {
	if goesTo(nodenet.DefaultPort, frame) {
		return nil
	}
	return frame
}

// dropProbes drops probes of node 0 over IPv4 by their number, the first is 1.
func dropProbes(drop func(number int) bool) frameEdit {
	number := 0
	return func(from int, frame []byte) []byte {
		if from == 0 && goesTo(pathprobe.DefaultPort, frame) { // one goroutine forwards all frames of a node
			if number++; drop(number) {
				return nil
			}
		}
		return frame
	}
}

// goesTo reports whether a frame is UDP over IPv4 to a port.
func goesTo(port uint16, frame []byte) bool {
	return len(frame) > atUDP+4 && frame[atIP+9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(frame[atUDP+2:]) == port
}
