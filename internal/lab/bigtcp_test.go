// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

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
						answer := client.ask(t, question)
						testkit.Require(t, answer.Error == "", "%v", answer.Error)
						return wantLarge(target.Addr(), packets.Load())
					})
				}
			})
		}
	}
}

// streamed is the number of bytes of a stream.
const streamed = 16 << 20

// wantLarge checks for packets of more than 64 KiB to an IPv4 address, and of less to an IPv6 address.
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
