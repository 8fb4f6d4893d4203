// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestBigTCPReachesServices sends streams to pod IPs and to services in each way. They arrive unchanged, by IPv4 in
// packets of more than 64 KiB.
func TestBigTCPReachesServices(t *testing.T) {
	s := store(t)
	for _, link := range []string{"veth", "bridge", "macvlan", "ipvlan-l2", "netkit"} {
		for _, w := range ways() {
			o, ok := w.options(link)
			if !ok {
				continue
			}
			o.BigTCP = true
			t.Run(link+"/"+w.name, func(t *testing.T) {
				mode := testkit.Must(podlink.Lookup(link))(t)
				testkit.RequireMode(t, mode.Probe())
				l := up(t, s, o)
				server := place(t, l, lab.PodA)
				client := startClient(t, l, lab.PodB)
				for family := range lab.Services() {
					target := netip.AddrPortFrom(lab.PodAIPs[family], lab.ServicePort)
					testkit.Echo(t, server, "tcp", target.String())
					if w.via != lab.ViaNone {
						target = lab.Services()[family].Frontend
					}
					packets := testkit.WatchPackets(t, server, deviceIndex(t, server, l.Device(lab.PodA)), nil)
					testkit.Eventually(t, 30*time.Second, func() error {
						question := question{Network: "tcp", Target: target.String(), Size: streamed}
						if answer := client.ask(t, question); answer.Error != "" {
							t.Fatal(answer.Error)
						}
						return wantLarge(target.Addr(), packets.Load())
					})
				}
			})
		}
	}
}

// streamed is the number of bytes of a stream.
const streamed = 16 << 20

// streamUntil sends streams to an echo server until done returns nil.
func streamUntil(t *testing.T, from *netns.Namespace, to netip.AddrPort, done func() error) {
	t.Helper()
	payload := make([]byte, streamed)
	_, _ = rand.Read(payload)
	testkit.Eventually(t, 30*time.Second, func() error {
		if _, err := testkit.RoundTrip(t, from, "tcp", to.String(), payload); err != nil {
			t.Fatal(err)
		}
		return done()
	})
}

// wantLarge wants packets of more than 64 KiB to an IPv4 address, and of less to one of IPv6.
func wantLarge(to netip.Addr, largest int64) error {
	if largest == 0 || to.Is4() != (largest > rtnl.PacketBytes) {
		return fmt.Errorf("the largest packet to %v has %d bytes", to, largest)
	}
	return nil
}

func deviceIndex(t *testing.T, ns *netns.Namespace, name string) int {
	t.Helper()
	device := testkit.Must(rtnl.In(ns).Device(name))(t)
	return device.Index
}

// TestBigTCPLeavesInFrames sends streams from a pod with BIG TCP to another host, by an uplink whose limits are
// smaller. Without offloads each packet on the wire fits the MTU; with them none has more than 64 KiB.
func TestBigTCPLeavesInFrames(t *testing.T) {
	s := store(t)
	for _, link := range []string{"veth", "bridge", "macvlan", "ipvlan-l2", "netkit"} {
		for _, offload := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/offload %t", link, offload), func(t *testing.T) {
				mode := testkit.Must(podlink.Lookup(link))(t)
				testkit.RequireMode(t, mode.Probe())
				o := options(lab.Options{Topology: lab.TopologyPodToHost, Link: link, BigTCP: true})
				l := up(t, s, o)
				hostA, hostB, pod := place(t, l, lab.HostA), place(t, l, lab.HostB), place(t, l, lab.PodB)
				limit := rtnl.PacketBytes
				if !offload {
					limit = podlink.DefaultMTU
					testkit.Succeed(t, rtnl.In(hostB).DisableOffloads(lab.Uplink))
				}
				var wire wireCheck
				testkit.WatchPackets(t, hostA, deviceIndex(t, hostA, lab.Uplink), func(frame []byte) { wire.add(frame, limit) })
				for _, addr := range lab.Addresses(l.Options, lab.HostA) {
					server := testkit.Echo(t, hostA, "tcp", netip.AddrPortFrom(addr, 0).String())
					sent := testkit.WatchPackets(t, pod, deviceIndex(t, pod, l.Device(lab.PodB)), nil)
					streamUntil(t, pod, server, func() error { return wantLarge(addr, sent.Load()) })
				}
				testkit.Eventually(t, 10*time.Second, func() error { return wire.carried(2 * streamed) })
				for _, fault := range wire.faults() {
					t.Error(fault)
				}
			})
		}
	}
}

// wireCheck checks the sizes of TCP packets on a wire.
type wireCheck struct {
	mu    sync.Mutex
	bytes int
	found []string
}

// add checks the size of a frame's packet.
func (w *wireCheck) add(frame []byte, limit int) {
	const ethernet, ipv4, ipv6 = 14, 20, 40
	w.mu.Lock()
	defer w.mu.Unlock()
	packet := frame[ethernet:]
	switch {
	case len(packet) > ipv4 && packet[0] == 0x45 && packet[9] == unix.IPPROTO_TCP:
		w.bytes += int(binary.BigEndian.Uint16(packet[2:])) - ipv4
	case len(packet) > ipv6 && packet[0]>>4 == 6 && packet[6] == unix.IPPROTO_TCP:
		w.bytes += int(binary.BigEndian.Uint16(packet[4:]))
	default:
		return
	}
	if len(packet) > limit {
		w.found = append(w.found, fmt.Sprintf("a packet has %d bytes, more than %d", len(packet), limit))
	}
}

// carried returns an error until that many bytes have crossed.
func (w *wireCheck) carried(bytes int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bytes < bytes {
		return fmt.Errorf("%d bytes of TCP crossed the wire, less than %d", w.bytes, bytes)
	}
	return nil
}

// faults returns the first of them.
func (w *wireCheck) faults() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.found[:min(len(w.found), 5)]
}
