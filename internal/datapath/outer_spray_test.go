// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// sprayed is some times the number of seals of which one fits by chance, if what routing leaves of a seal counted.
const sprayed = 250_000

// TestSealsAreNotReused has root of a pod send its own packets, with seals, to very many destinations. Behind the program a filter takes them to
// a network namespace of the pod's, which gives them another pod's address and forwards them to the host by a second device. IP clears
// most of skb->cb there, as where the host routes packets of layer 3. None arrives, and outer_seal seals none for a pod.
func TestSealsAreNotReused(t *testing.T) {
	testkit.RequireTool(t, "nft")
	f := newForger(t, linkMode{"macvlan", slaves})
	hostMAC := net.HardwareAddr(f.reachHost(t))
	deep := testkit.Namespace(t, "deep")
	f.another(t, "eth5")
	f.run(t, strings.ReplaceAll(`
		-n PODB link set eth5 netns DEEP
		-n DEEP link set eth5 up
		-n PODB link add over type veth peer name under netns DEEP
		-n PODB link set over up
		-n DEEP link set under up
		-n DEEP link set lo up
		-n DEEP -6 route add fd00:10::/64 dev eth5
		-n DEEP -6 neigh add `+gateway6+` lladdr `+hostMAC.String()+` dev eth5 nud permanent
		-n DEEP -6 neigh add `+podA6+` lladdr `+hostMAC.String()+` dev eth5 nud permanent`, "DEEP", deep.Name()))
	succeed(t, rtnl.In(deep).SetSysctl("net/ipv6/conf/all/forwarding", "1"))
	under := must(rtnl.In(deep).Device("under"))(t)
	f.tc(t, "qdisc add dev eth0 clsact")
	f.tc(t, "filter add dev eth0 egress protocol ipv6 u32 match ip6 dst fd01::/16 action mirred egress redirect dev over")
	const forged, outside = "fd00:10::c", "2001:db8::8"
	for name, victim := range map[string]net.PacketConn{
		"to the host": listenIn(t, f.network.host, gateway6), "to a pod by the host": listenIn(t, f.pods[0], podA6),
	} {
		t.Run(name, func(t *testing.T) {
			to := victim.LocalAddr().(*net.UDPAddr).AddrPort()
			rewriteIn := func(source string) {
				rules := fmt.Sprintf("add table ip6 t; delete table ip6 t; add table ip6 t; add chain ip6 t c { type filter hook prerouting priority -300; }; "+
					"add rule ip6 t c ip6 daddr fd01::/16 ip6 saddr set %s ip6 daddr set %s", source, to.Addr())
				succeed(t, deep.Do(func() error { return exec.Command("nft", rules).Run() }))
			}
			spray := func(n int, text string) {
				succeed(t, f.spray(under.MAC, to.Port(), n, text))
			}
			rewriteIn(outside)
			testkit.Eventually(t, 10*time.Second, func() error { spray(1, "warm"); return f.expectAny(victim, "warm") })
			rewriteIn(forged)
			before := counts(t, f.d)
			spray(sprayed, "forged")
			if dropped := delta(t, f.d, before)["drop_source"]; dropped < sprayed/2 {
				t.Errorf("drop_source: %d of %d that were sent", dropped, sprayed)
			}
			rewriteIn(outside)
			spray(1, "passes")
			if err := f.expect(victim, "passes"); err != nil {
				t.Error(err)
			}
		})
	}
}

// spray sends datagrams of the pod to as many destinations.
func (f *forger) spray(next net.HardwareAddr, port uint16, n int, text string) error {
	return f.pods[1].Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := netip.MustParseAddr("fd01::").As16()
		p := packet{src: netip.MustParseAddrPort("[" + podB6 + "]:4000"), proto: protoUDP, payload: text}
		for i := range n {
			binary.BigEndian.PutUint32(to[12:], uint32(i))
			p.dst = netip.AddrPortFrom(netip.AddrFrom16(to), port)
			frame := slices.Concat(next, f.own, []byte{0x86, 0xdd}, p.ip())
			at := &unix.SockaddrLinklayer{Ifindex: f.device.Index, Protocol: unix.ETH_P_IPV6>>8 | unix.ETH_P_IPV6&0xff<<8}
			if err := unix.Sendto(fd, frame, 0, at); err != nil {
				return err
			}
		}
		return nil
	})
}
