// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"mustang/internal/netns"
)

// A new address is announced several times, as packets can be lost, and a former owner may still answer.
const (
	announcements = 3
	between       = time.Second
)

const afterError = 100 * time.Millisecond // between reads of a device that is down

var (
	broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodes  = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
)

// solicitations selects neighbour solicitations among IPv6 packets.
var solicitations = []bpf.Instruction{
	bpf.LoadAbsolute{Off: header.IPv6NextHeaderOffset, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(header.ICMPv6ProtocolNumber), SkipTrue: 3},
	bpf.LoadAbsolute{Off: header.IPv6MinimumSize, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(header.ICMPv6NeighborSolicit), SkipTrue: 1},
	bpf.RetConstant{Val: header.IPv6MinimumMTU},
	bpf.RetConstant{Val: 0},
}

// responder answers on one device.
type responder struct {
	device
	ns      *netns.Namespace
	arp, nd *packet.Conn
	closed  chan struct{}
	running sync.WaitGroup

	mu    sync.Mutex
	owned map[netip.Addr]io.Closer // an IPv6 address has a socket, which is in its multicast group
}

func open(ns *netns.Namespace, d device) (r *responder, err error) {
	filter, err := bpf.Assemble(solicitations)
	if err != nil {
		return nil, err
	}
	r = &responder{device: d, ns: ns, closed: make(chan struct{}), owned: map[netip.Addr]io.Closer{}}
	err = ns.Do(func() error {
		at := &net.Interface{Index: d.index}
		if r.arp, err = packet.Listen(at, packet.Datagram, unix.ETH_P_ARP, nil); err != nil {
			return err
		}
		r.nd, err = packet.Listen(at, packet.Datagram, unix.ETH_P_IPV6, &packet.Config{Filter: filter})
		return err
	})
	if err != nil {
		if r.arp != nil {
			err = errors.Join(err, r.arp.Close())
		}
		return nil, err
	}
	r.running.Go(func() { r.serve(r.arp, r.answerARP) })
	r.running.Go(func() { r.serve(r.nd, r.answerND) })
	return r, nil
}

func (r *responder) close() {
	close(r.closed)
	_, _ = r.arp.Close(), r.nd.Close()
	_ = r.set(nil)
	r.running.Wait()
}

// serve handles packets until the socket is closed. An answer that cannot be sent is left out: clients ask again.
func (r *responder) serve(on *packet.Conn, answer func(packet []byte) (reply []byte, to net.HardwareAddr)) {
	buffer := make([]byte, header.IPv6MinimumMTU)
	for {
		n, from, err := on.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select {
			case <-r.closed:
				return
			case <-time.After(afterError):
			}
			continue
		}
		if reply, to := answer(buffer[:n]); reply != nil {
			if to == nil {
				to = from.(*packet.Addr).HardwareAddr
			}
			_, _ = on.WriteTo(reply, &packet.Addr{HardwareAddr: to})
		}
	}
}

func (r *responder) owns(addr netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.owned[addr]
	return ok
}

// set replaces the addresses, and announces new ones.
func (r *responder) set(owned []netip.Addr) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	want := map[netip.Addr]bool{}
	var added []netip.Addr
	for _, addr := range owned {
		want[addr] = true
		if _, ok := r.owned[addr]; ok {
			continue
		}
		member, joinErr := r.join(addr)
		if joinErr != nil {
			err = errors.Join(err, fmt.Errorf("answer for %v on device %q: %w", addr, r.name, joinErr))
			continue
		}
		r.owned[addr], added = member, append(added, addr)
	}
	for addr, member := range r.owned {
		if !want[addr] {
			_ = member.Close()
			delete(r.owned, addr)
		}
	}
	if len(added) > 0 {
		r.running.Go(func() { r.announce(added) })
	}
	return err
}

// join returns a socket in the multicast group to which neighbours send solicitations for an address. Each address has
// a socket, since a socket can be only in some hundred groups.
func (r *responder) join(addr netip.Addr) (io.Closer, error) {
	if addr.Is4() {
		return io.NopCloser(nil), nil
	}
	group := header.SolicitedNodeAddr(tcpip.AddrFrom16(addr.As16())).As16()
	conn, err := netns.Get(r.ns, func() (net.PacketConn, error) { return net.ListenPacket("udp6", "[::1]:0") })
	if err != nil {
		return nil, err
	}
	if err := ipv6.NewPacketConn(conn).JoinGroup(&net.Interface{Index: r.index}, &net.UDPAddr{IP: group[:]}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func (r *responder) announce(added []netip.Addr) {
	for i := range announcements {
		if i > 0 {
			select {
			case <-r.closed:
				return
			case <-time.After(between):
			}
		}
		for _, addr := range added {
			switch {
			case !r.owns(addr): // no longer
			case addr.Is4():
				request := r.packetARP(header.ARPRequest, addr, addr, make([]byte, 6))
				_, _ = r.arp.WriteTo(request, &packet.Addr{HardwareAddr: broadcast})
			default:
				_, _ = r.nd.WriteTo(r.advertisement(addr, header.IPv6AllNodesMulticastAddress, false),
					&packet.Addr{HardwareAddr: allNodes})
			}
		}
	}
}

// answerARP returns the reply to a request for an owned address (RFC 826). An announcement of another node is a request
// of the address itself.
func (r *responder) answerARP(received []byte) ([]byte, net.HardwareAddr) {
	request := header.ARP(received)
	if !request.IsValid() || request.Op() != header.ARPRequest ||
		bytes.Equal(request.ProtocolAddressSender(), request.ProtocolAddressTarget()) {
		return nil, nil
	}
	target := netip.AddrFrom4([4]byte(request.ProtocolAddressTarget()))
	if !r.owns(target) {
		return nil, nil
	}
	asker := netip.AddrFrom4([4]byte(request.ProtocolAddressSender()))
	return r.packetARP(header.ARPReply, target, asker, request.HardwareAddressSender()), nil
}

func (r *responder) packetARP(op header.ARPOp, sender, target netip.Addr, targetMAC []byte) []byte {
	out := make(header.ARP, header.ARPSize)
	out.SetIPv4OverEthernet()
	out.SetOp(op)
	copy(out.HardwareAddressSender(), r.mac[:])
	copy(out.ProtocolAddressSender(), sender.AsSlice())
	copy(out.HardwareAddressTarget(), targetMAC)
	copy(out.ProtocolAddressTarget(), target.AsSlice())
	return out
}

// answerND returns the advertisement for a solicitation of an owned address (RFC 4861, section 7.2.4). All nodes get
// the answer to a node that wants to use the address itself.
func (r *responder) answerND(received []byte) (reply []byte, to net.HardwareAddr) {
	ip := header.IPv6(received)
	if !ip.IsValid(len(received)) || ip.HopLimit() != header.NDPHopLimit ||
		len(ip.Payload()) < header.ICMPv6NeighborSolicitMinimumSize {
		return nil, nil
	}
	icmp := header.ICMPv6(ip.Payload())
	target := header.NDPNeighborSolicit(icmp.MessageBody()).TargetAddress()
	switch {
	case icmp.Type() != header.ICMPv6NeighborSolicit || !r.owns(netip.AddrFrom16(target.As16())):
		return nil, nil
	case ip.SourceAddress().Unspecified():
		return r.advertisement(netip.AddrFrom16(target.As16()), header.IPv6AllNodesMulticastAddress, false), allNodes
	}
	return r.advertisement(netip.AddrFrom16(target.As16()), ip.SourceAddress(), true), nil
}

func (r *responder) advertisement(addr netip.Addr, to tcpip.Address, solicited bool) []byte {
	from, option := tcpip.AddrFrom16(addr.As16()), header.NDPTargetLinkLayerAddressOption(r.mac[:])
	size := header.ICMPv6NeighborAdvertMinimumSize + header.NDPLinkLayerAddressSize
	out := make(header.IPv6, header.IPv6MinimumSize+size)
	out.Encode(&header.IPv6Fields{PayloadLength: uint16(size), TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit: header.NDPHopLimit, SrcAddr: from, DstAddr: to})
	icmp := header.ICMPv6(out.Payload())
	icmp.SetType(header.ICMPv6NeighborAdvert)
	body := header.NDPNeighborAdvert(icmp.MessageBody())
	body.SetTargetAddress(from)
	body.SetSolicitedFlag(solicited)
	body.SetOverrideFlag(true)
	body.Options().Serialize(header.NDPOptionsSerializer{option})
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: from, Dst: to}))
	return out
}
