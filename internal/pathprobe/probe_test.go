// SPDX-License-Identifier: Apache-2.0

package pathprobe_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/nodenet"
	"mustang/internal/pathprobe"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.CheckLeaks(m)) }

const ethernet = 14

// wire joins two nodes by a namespace between them, where a program in user space forwards frames: what edit returns,
// nothing for nil. The nodes' devices have no offloads, so that the frames are complete.
type wire struct {
	nodes     [2]*netns.Namespace
	addresses [2]netip.Addr
}

type edit func(from int, frame []byte) []byte

func newWire(t *testing.T, v6 bool, change edit) wire {
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
	var forwarders sync.WaitGroup
	for from := range ports {
		forwarders.Go(func() {
			forward(t.Context(), ports[from], ports[1-from], func(f []byte) []byte { return change(from, f) })
		})
	}
	t.Cleanup(forwarders.Wait) // before the sockets are closed
	return w
}

func packetSocket(t *testing.T, ns *netns.Namespace, device string) (fd int) {
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

func forward(ctx context.Context, from, to int, change func([]byte) []byte) {
	buffer := make([]byte, 1<<16)
	for ctx.Err() == nil {
		n, _, err := unix.Recvfrom(from, buffer, 0)
		if err != nil {
			continue // the time-out
		}
		if frame := change(buffer[:n]); frame != nil {
			_, _ = unix.Write(to, frame)
		}
	}
}

func clean(_ int, frame []byte) []byte { return frame }

// limited drops packets of more than 1400 bytes without a word, from one node or, for -1, from both.
func limited(node int) edit {
	return func(from int, frame []byte) []byte {
		if (node < 0 || from == node) && len(frame) > ethernet+1400 {
			return nil
		}
		return frame
	}
}

// miscalculated does what a device with a broken checksum offload does: the TCP checksums in VXLAN packets of one node
// are wrong, if these have at least so many bytes. The outer checksum is left out or, if both, wrong as well.
func miscalculated(node, least int, both bool) edit {
	return func(from int, frame []byte) []byte {
		udp := ethernet + 20
		inner := udp + 8 + 8 + ethernet
		if from == node && len(frame) >= max(least, inner+40) && frame[ethernet+9] == unix.IPPROTO_UDP &&
			binary.BigEndian.Uint16(frame[udp+2:]) == nodenet.DefaultPort && frame[inner+9] == unix.IPPROTO_TCP {
			frame[inner+20+16] ^= 0x55
			if !both {
				frame[udp+6], frame[udp+7] = 0, 0
			}
		}
		return frame
	}
}

// noTunnel drops the VXLAN packets.
func noTunnel(_ int, frame []byte) []byte {
	if len(frame) > ethernet+28 && frame[ethernet+9] == unix.IPPROTO_UDP &&
		binary.BigEndian.Uint16(frame[ethernet+20+2:]) == nodenet.DefaultPort {
		return nil
	}
	return frame
}

func options(w wire, node int) pathprobe.Options {
	return pathprobe.Options{Host: w.nodes[node], At: netip.AddrPortFrom(w.addresses[1], pathprobe.DefaultPort),
		Port: nodenet.DefaultPort}
}

// listen runs the listening end on the second node until the test ends.
func (w wire) listen(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- pathprobe.Listen(ctx, options(w, 1), func() error {
			close(ready)
			return nil
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		testkit.Check(t, <-done == nil, "the listening end fails")
	})
}

// TestProbe probes paths with one fault each, and without one.
func TestProbe(t *testing.T) {
	testkit.RequireRoot(t)
	for name, c := range map[string]struct {
		v6          bool
		change      edit
		there, back int     // 0: 1500
		stalled     bool    // without a wrong checksum
		wrong       [2]bool // at the other node, at this one
	}{
		"clean":                  {change: clean},
		"clean, IPv6":            {v6: true, change: clean},
		"small MTU":              {change: limited(-1), there: 1400, back: 1400},
		"small MTU, IPv6":        {v6: true, change: limited(-1), there: 1400, back: 1400},
		"small MTU on return":    {change: limited(1), back: 1400},
		"checksums":              {change: miscalculated(0, 0, false), wrong: [2]bool{true}},
		"both checksums":         {change: miscalculated(0, 0, true), wrong: [2]bool{true}},
		"checksums of full ones": {change: miscalculated(0, 1300, false), wrong: [2]bool{true}},
		"checksums on return":    {change: miscalculated(1, 1300, false), wrong: [2]bool{1: true}},
		"no tunnel":              {change: noTunnel, stalled: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, c.v6, c.change)
			w.listen(t)
			before := testkit.Must(rtnl.In(w.nodes[0]).Devices())(t)
			path, err := pathprobe.Probe(t.Context(), options(w, 0))
			testkit.Succeed(t, err)
			t.Logf("%+v", path)
			testkit.Check(t, path.Device == "eth0" && path.MTU == 1500 && path.There == cmp.Or(c.there, 1500) &&
				path.Back == cmp.Or(c.back, 1500),
				"path %+v", path)
			testkit.Check(t, (path.Tunnel.Stalled != nil) == (c.stalled || c.wrong != [2]bool{}) &&
				[2]bool{path.Tunnel.WrongThere > 0, path.Tunnel.WrongHere > 0} == c.wrong, "tunnel %+v", path.Tunnel)
			after := testkit.Must(rtnl.In(w.nodes[0]).Devices())(t)
			testkit.Check(t, len(after) == len(before), "devices of the node: %v", after)
		})
	}
}

// TestNoAnswer probes a node where nobody listens, and a path that drops everything.
func TestNoAnswer(t *testing.T) {
	testkit.RequireRoot(t)
	for name, change := range map[string]edit{
		"refused": clean,
		"nothing": func(_ int, f []byte) []byte {
			if f[ethernet+9] == unix.IPPROTO_UDP {
				return nil
			}
			return f
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := pathprobe.Probe(t.Context(), options(newWire(t, false, change), 0))
			testkit.Fails(t, err, "no answer from 192.0.2.2:7178", name)
			testkit.Check(t, errors.As(err, new(*pathprobe.NoAnswerError)), "%T", err)
		})
	}
}
