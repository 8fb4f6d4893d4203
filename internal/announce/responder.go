// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"mustang/internal/netns"
)

// A new address is announced several times, as packets can be lost, and a former owner may still answer.
const (
	announcements = 3
	between       = time.Second
)

const (
	afterError       = 100 * time.Millisecond // between reads of a device that is down
	answersPerSecond = 1000
	defendEvery      = 10 * time.Second // as in RFC 5227
)

var (
	broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodes  = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
)

// mark is in the packets of a cluster's announcers. They ignore each other's: the former owner of an address may still
// have it. ARP has the mark in its padding, neighbour discovery in a nonce, the last option (RFC 3971).
type mark [6]byte

func markOf(cluster string) mark {
	sum := sha256.Sum256([]byte("mustang " + cluster))
	return mark(sum[:])
}

// Both filters drop packets to other hosts, such as packets of VLANs without a device. The second one also drops IPv6
// packets that are no neighbour solicitations or advertisements.
var (
	requests = []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OTHERHOST, SkipTrue: 1},
		bpf.RetConstant{Val: header.IPv6MinimumMTU},
		bpf.RetConstant{Val: 0},
	}
	solicitations = []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OTHERHOST, SkipTrue: 6},
		bpf.LoadAbsolute{Off: header.IPv6NextHeaderOffset, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(header.ICMPv6ProtocolNumber), SkipTrue: 4},
		bpf.LoadAbsolute{Off: header.IPv6MinimumSize, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(header.ICMPv6NeighborSolicit), SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(header.ICMPv6NeighborAdvert), SkipTrue: 1},
		bpf.RetConstant{Val: header.IPv6MinimumMTU},
		bpf.RetConstant{Val: 0},
	}
)

// responder answers on one device.
type responder struct {
	device
	ns      *netns.Namespace
	arp, nd *packet.Conn
	closed  chan struct{}
	running sync.WaitGroup
	limit   *rate.Limiter

	mu    sync.Mutex
	owned map[netip.Addr]*address
}

type address struct {
	member   membership
	answers  bool   // it was probed
	rival    string // the MAC address of another host that uses it
	defended time.Time
}

func open(ns *netns.Namespace, d device) (r *responder, err error) {
	r = &responder{device: d, ns: ns, closed: make(chan struct{}), owned: map[netip.Addr]*address{},
		limit: rate.NewLimiter(answersPerSecond, answersPerSecond)}
	listen := func(protocol int, program []bpf.Instruction) (*packet.Conn, error) {
		filter, err := bpf.Assemble(program)
		if err != nil {
			return nil, err
		}
		return netns.Get(ns, func() (*packet.Conn, error) {
			return packet.Listen(&net.Interface{Index: d.index}, packet.Datagram, protocol, &packet.Config{Filter: filter})
		})
	}
	if r.arp, err = listen(unix.ETH_P_ARP, requests); err != nil {
		return nil, err
	}
	if r.nd, err = listen(unix.ETH_P_IPV6, solicitations); err != nil {
		return nil, errors.Join(err, r.arp.Close())
	}
	r.running.Go(func() { r.serve(r.arp, r.answerARP) })
	r.running.Go(func() { r.serve(r.nd, r.answerND) })
	return r, nil
}

func (r *responder) close() {
	close(r.closed)
	_, _ = r.arp.Close(), r.nd.Close()
	_, _ = r.set(nil)
	r.running.Wait()
}

// serve handles packets until the socket is closed. An answer that cannot be sent is left out: clients ask again.
func (r *responder) serve(on *packet.Conn, answer func(packet []byte, from net.HardwareAddr) (reply []byte,
	to net.HardwareAddr)) {
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
		reply, to := answer(buffer[:n], from.(*packet.Addr).HardwareAddr)
		if reply != nil && r.limit.Allow() {
			_, _ = on.WriteTo(reply, &packet.Addr{HardwareAddr: to})
		}
	}
}

func (r *responder) owns(addr netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.owned[addr]
	return at != nil && at.answers
}

// set replaces the addresses, and reports whether some have to be probed.
func (r *responder) set(owned []netip.Addr) (added bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	want, failed := map[netip.Addr]bool{}, 0
	for _, addr := range owned {
		want[addr] = true
		if r.owned[addr] != nil {
			continue
		}
		member, joinErr := r.join(addr)
		if joinErr != nil {
			failed++
			err = fmt.Errorf("answer on device %q for %d addresses such as %v: %w", r.name, failed, addr, joinErr)
			continue
		}
		r.owned[addr], added = &address{member: member}, true
	}
	for addr, at := range r.owned {
		if !want[addr] {
			at.member.close()
			delete(r.owned, addr)
		}
	}
	return added, err
}

// probe asks for the addresses that are not announced yet (RFC 5227, section 2.1.1; RFC 4862, section 5.4.2).
func (r *responder) probe() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for addr, at := range r.owned {
		switch {
		case at.answers:
		case addr.Is4():
			request := r.packetARP(header.ARPRequest, netip.IPv4Unspecified(), addr, make([]byte, 6))
			_, _ = r.arp.WriteTo(request, &packet.Addr{HardwareAddr: broadcast})
		default:
			group := header.SolicitedNodeAddr(tcpip.AddrFrom16(addr.As16()))
			mac := append(net.HardwareAddr{0x33, 0x33}, group.AsSlice()[12:]...)
			_, _ = r.nd.WriteTo(r.solicitation(addr, group), &packet.Addr{HardwareAddr: mac})
		}
	}
}

// settle announces the probed addresses that no other host has. It adds the others to conflicts.
func (r *responder) settle(conflicts map[netip.Addr]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var added []netip.Addr
	for addr, at := range r.owned {
		switch rival := at.rival; {
		case rival != "":
			conflicts[addr] = fmt.Sprintf("host %s on device %q uses it", rival, r.name)
			if at.rival = ""; !at.answers {
				at.member.close()
				delete(r.owned, addr)
			}
		case !at.answers:
			at.answers, added = true, append(added, addr)
		}
	}
	if len(added) > 0 {
		r.running.Go(func() { r.announce(added, announcements) })
	}
}

// heard notes that a host uses an address. It announces an IPv4 address of this node again (RFC 5227, section 2.4).
func (r *responder) heard(addr netip.Addr, mac []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.owned[addr]
	if at == nil || bytes.Equal(mac, r.mac[:]) {
		return
	}
	at.rival = net.HardwareAddr(mac).String()
	if at.answers && addr.Is4() && time.Since(at.defended) > defendEvery {
		at.defended = time.Now()
		r.running.Go(func() { r.announce([]netip.Addr{addr}, 1) })
	}
}

// membership is a socket in the multicast group to which neighbours send solicitations for an IPv6 address; 0: none.
// Each address has a socket, since a socket can be only in some hundred groups.
type membership int

func (m membership) close() {
	if m > 0 {
		_ = unix.Close(int(m))
	}
}

func (r *responder) join(addr netip.Addr) (membership, error) {
	if addr.Is4() {
		return 0, nil
	}
	group := &unix.IPv6Mreq{Multiaddr: header.SolicitedNodeAddr(tcpip.AddrFrom16(addr.As16())).As16(),
		Interface: uint32(r.index)}
	return netns.Get(r.ns, func() (membership, error) {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		if err = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, group); err != nil {
			return 0, errors.Join(err, unix.Close(fd))
		}
		return membership(fd), nil
	})
}

func (r *responder) announce(all []netip.Addr, times int) {
	for i := range times {
		if i > 0 {
			select {
			case <-r.closed:
				return
			case <-time.After(between):
			}
		}
		for _, addr := range all {
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

// answerARP returns the reply to a request for an owned address (RFC 826).
func (r *responder) answerARP(received []byte, from net.HardwareAddr) (reply []byte, to net.HardwareAddr) {
	request := header.ARP(received)
	if !request.IsValid() || bytes.HasPrefix(received[header.ARPSize:], r.mark[:]) {
		return nil, nil
	}
	target := netip.AddrFrom4([4]byte(request.ProtocolAddressTarget()))
	asker := netip.AddrFrom4([4]byte(request.ProtocolAddressSender()))
	r.heard(asker, request.HardwareAddressSender())
	if asker.IsUnspecified() && !r.owns(target) { // another host probes it too (RFC 5227, section 2.1.1)
		r.heard(target, request.HardwareAddressSender())
	}
	if request.Op() != header.ARPRequest || asker == target || !r.owns(target) {
		return nil, nil
	}
	return r.packetARP(header.ARPReply, target, asker, request.HardwareAddressSender()), from
}

func (r *responder) packetARP(op header.ARPOp, sender, target netip.Addr, targetMAC []byte) []byte {
	out := append(make(header.ARP, header.ARPSize), r.mark[:]...)
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
func (r *responder) answerND(received []byte, from net.HardwareAddr) (reply []byte, to net.HardwareAddr) {
	ip := header.IPv6(received)
	if !ip.IsValid(len(received)) || len(ip.Payload()) < header.ICMPv6NeighborSolicitMinimumSize {
		return nil, nil
	}
	icmp, source := header.ICMPv6(ip.Payload()), ip.SourceAddress()
	sum := header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: source, Dst: ip.DestinationAddress()})
	if ip.HopLimit() != header.NDPHopLimit || icmp.Code() != 0 || icmp.Checksum() != sum ||
		header.IsV6MulticastAddress(source) || bytes.HasSuffix(icmp, r.mark[:]) {
		return nil, nil
	}
	// A solicitation and an advertisement have the target at the same place.
	target := netip.AddrFrom16(header.NDPNeighborSolicit(icmp.MessageBody()).TargetAddress().As16())
	switch {
	case icmp.Type() == header.ICMPv6NeighborAdvert:
		r.heard(target, from)
	case !r.owns(target) && source.Unspecified(): // another host probes it too (RFC 4862, section 5.4.3)
		r.heard(target, from)
	case !r.owns(target):
	case source.Unspecified():
		return r.advertisement(target, header.IPv6AllNodesMulticastAddress, false), allNodes
	default:
		return r.advertisement(target, source, true), from
	}
	return nil, nil
}

func (r *responder) solicitation(addr netip.Addr, to tcpip.Address) []byte {
	size := header.ICMPv6NeighborSolicitMinimumSize + header.NDPLinkLayerAddressSize
	out := make(header.IPv6, header.IPv6MinimumSize+size)
	out.Encode(&header.IPv6Fields{PayloadLength: uint16(size), TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit: header.NDPHopLimit, SrcAddr: header.IPv6Any, DstAddr: to})
	icmp := header.ICMPv6(out.Payload())
	icmp.SetType(header.ICMPv6NeighborSolicit)
	body := header.NDPNeighborSolicit(icmp.MessageBody())
	body.SetTargetAddress(tcpip.AddrFrom16(addr.As16()))
	body.Options().Serialize(header.NDPOptionsSerializer{header.NDPNonceOption(r.mark[:])})
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: header.IPv6Any, Dst: to}))
	return out
}

func (r *responder) advertisement(addr netip.Addr, to tcpip.Address, solicited bool) []byte {
	from, option := tcpip.AddrFrom16(addr.As16()), header.NDPTargetLinkLayerAddressOption(r.mac[:])
	size := header.ICMPv6NeighborAdvertMinimumSize + 2*header.NDPLinkLayerAddressSize
	out := make(header.IPv6, header.IPv6MinimumSize+size)
	out.Encode(&header.IPv6Fields{PayloadLength: uint16(size), TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit: header.NDPHopLimit, SrcAddr: from, DstAddr: to})
	icmp := header.ICMPv6(out.Payload())
	icmp.SetType(header.ICMPv6NeighborAdvert)
	body := header.NDPNeighborAdvert(icmp.MessageBody())
	body.SetTargetAddress(from)
	body.SetSolicitedFlag(solicited)
	body.SetOverrideFlag(true)
	body.Options().Serialize(header.NDPOptionsSerializer{option, header.NDPNonceOption(r.mark[:])})
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: from, Dst: to}))
	return out
}
