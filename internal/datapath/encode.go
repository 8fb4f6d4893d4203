// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/bits"
	"net/netip"

	"mustang/internal/lb"
)

// bpfel objects run on little-endian machines only, so network order is the other one.

func toBE(port uint16) uint16 { return bits.ReverseBytes16(port) }

func encodeAddr(a netip.Addr) mustangAddr { return mustangAddr{Bytes: a.As16()} }

func decodeAddr(a mustangAddr) netip.Addr { return netip.AddrFrom16(a.Bytes).Unmap() }

func decodeAddrPort(a mustangAddr, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(decodeAddr(a), toBE(port))
}

func serviceKey(frontend netip.AddrPort, p lb.Protocol) mustangServiceKey {
	return mustangServiceKey{Addr: encodeAddr(frontend.Addr()), Port: toBE(frontend.Port()), Proto: uint8(p)}
}

// reverse is the tuple of what is sent in answer.
func reverse(t mustangTuple) mustangTuple {
	t.Saddr, t.Daddr = t.Daddr, t.Saddr
	t.Sport, t.Dport = t.Dport, t.Sport
	return t
}
