// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestDSRPathMTU has a router on the client's side tell the service, which the first node has, that the way is narrow. The
// backend, on the second node, learns it.
func TestDSRPathMTU(t *testing.T) {
	n := newNodes(t)
	const mtu = 1300
	eachOutside(t, func(t *testing.T, o outsideCase) {
		if o.protocol != service.UDP { // whose errors need no sequence number
			return
		}
		v4 := netip.MustParseAddr(o.gate).Is4()
		pod := map[bool]string{true: farPod4, false: farPod6}[v4]
		backend := testkit.Echo(t, n.pod, "udp", net.JoinHostPort(pod, "0"))
		s := o.service(backend)
		s.DSR = service.IPIP
		for _, d := range []*Datapath{n.d, n.other} {
			must2(d.Services().Put(t.Context(), service.CLI, s))(t)
		}
		conn := must(testkit.Dial(n.client, "udp", s.Frontend.String()))(t)
		defer func() { _ = conn.Close() }()
		succeed(t, ask(conn, []byte("narrow?")))
		client := conn.LocalAddr().(*net.UDPAddr).AddrPort()
		answer := packet{src: s.Frontend, dst: netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), proto: protoUDP, payload: strings.Repeat("x", 100)}
		message, network := tooBig(answer, mtu), map[bool]string{true: "ip4:icmp", false: "ip6:ipv6-icmp"}[v4]
		before, beforeOther := settled(t, n.d), settled(t, n.other)
		succeed(t, n.client.Do(func() error {
			raw, err := net.Dial(network, s.Frontend.Addr().String())
			if err != nil {
				return err
			}
			_, err = raw.Write(message)
			return errors.Join(err, raw.Close())
		}))
		testkit.Eventually(t, 5*time.Second, func() error {
			out, err := exec.CommandContext(t.Context(), "ip", "-n", filepath.Base(n.pod.Name()), "route", "get", o.client).CombinedOutput()
			if err != nil || !strings.Contains(string(out), fmt.Sprintf("mtu %d", mtu)) {
				return fmt.Errorf("the backend's route: %s, %v; counted %v and %v", out, err, delta(t, n.d, before), delta(t, n.other, beforeOther))
			}
			return nil
		})
	})
}

// tooBig returns an ICMP message that a packet is larger than an MTU.
func tooBig(about packet, mtu uint16) []byte {
	error4 := packet{src: about.dst, dst: about.src, proto: protoICMP, icmpType: 3, icmpCode: 4, quote: &about}
	if about.v6() {
		error4.proto, error4.icmpType, error4.icmpCode = protoICMPv6, 2, 0
	}
	message := error4.transport()
	binary.BigEndian.PutUint16(message[6:], mtu)
	binary.BigEndian.PutUint16(message[2:], 0)
	binary.BigEndian.PutUint16(message[2:], ^sum(message)) // of ICMPv6 the kernel makes it
	return message
}
