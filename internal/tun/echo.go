// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	gvisor4 "gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	gvisor6 "gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Direction is the direction of a packet.
type Direction int

// The directions.
const (
	In  Direction = iota // from the kernel to this program
	Out                  // from this program to the kernel
)

// String returns "in" or "out".
func (d Direction) String() string { return map[Direction]string{In: "in", Out: "out"}[d] }

// Watch receives the packets of a device. It must be safe for concurrent use and must not keep or change the packet.
// Its error ends the echo.
type Watch func(direction Direction, packet []byte) error

// Echo answers packets that are routed to a TUN device until ctx ends, then returns nil. It answers ICMP and ICMPv6
// echo requests, UDP datagrams and TCP connections to any port. UDP datagrams and TCP streams are echoed. It answers
// for every destination address but multicast and broadcast. watch receives each packet, unless it is nil. Echo
// returns when all connections are closed.
func Echo(ctx context.Context, d *Device, watch Watch) error {
	if d.kind != TUN {
		return fmt.Errorf("%s: echo needs a TUN device", d)
	}
	if watch == nil {
		watch = func(Direction, []byte) error { return nil }
	}
	e, err := newEcho(d.mtu)
	if err != nil {
		return fmt.Errorf("%s: %w", d, err)
	}
	defer e.close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.send(ctx, d, watch) })
	group.Go(func() error {
		return d.Each(ctx, func(packet []byte) error {
			err := watch(In, packet)
			if err == nil {
				e.receive(packet)
			}
			return err
		})
	})
	return group.Wait()
}

const (
	nic           tcpip.NICID = 1                // the number of the one device of the TCP stack
	queueLength               = 4096             // in packets: a connection's send buffer of 4 MiB
	maxHandshakes             = 1024             // limits the half-open connections
	keepAliveIdle             = 30 * time.Second // the idle time before keep-alive probes
)

// echo is an IP stack (gVisor's netstack) that has every address, accepts connections to every port, and echoes.
type echo struct {
	stack    *stack.Stack
	endpoint *channel.Endpoint

	echoes sync.RWMutex // running echoes hold it shared
}

func newEcho(mtu int) (*echo, error) {
	e := &echo{endpoint: channel.New(queueLength, uint32(mtu), "")}
	e.stack = stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			gvisor4.NewProtocol,
			gvisor6.NewProtocolWithOptions(gvisor6.Options{}), // sends no router solicitations
		},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	sack, recovery, tuning := tcpip.TCPSACKEnabled(true), tcpip.TCPRecovery(0), tcpip.TCPModerateReceiveBufferOption(true)
	set := func(option tcpip.SettableTransportProtocolOption) tcpip.Error {
		return e.stack.SetTransportProtocolOption(tcp.ProtocolNumber, option)
	}
	for _, failed := range []tcpip.Error{
		e.stack.CreateNIC(nic, e.endpoint),
		e.stack.SetPromiscuousMode(nic, true), // takes packets to all addresses
		e.stack.SetSpoofing(nic, true),        // answers from all addresses
		set(&sack),
		// With RACK, connections with occasional loss stall for ever (github.com/tailscale/tailscale/pull/14934).
		set(&recovery),
		set(&tuning),
	} {
		if failed != nil {
			e.close()
			return nil, fmt.Errorf("TCP stack: %s", failed)
		}
	}
	e.stack.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nic},
		{Destination: header.IPv6EmptySubnet, NIC: nic},
	})
	forwarder := tcp.NewForwarder(e.stack, 0, maxHandshakes, e.accept)
	e.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, forwarder.HandlePacket)
	e.stack.SetTransportProtocolHandler(udp.ProtocolNumber, e.answer)
	e.stack.SetTransportProtocolHandler(icmp.ProtocolNumber4, e.answer) // the stack itself answers ICMPv6 requests
	return e, nil
}

// answer sends a UDP datagram or an ICMP echo back, without state: exchanged addresses keep the checksum.
func (e *echo) answer(_ stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	from, to := pkt.Network().SourceAddress(), pkt.Network().DestinationAddress()
	if !hostAddress(from) || !hostAddress(to) {
		return true
	}
	route, err := e.stack.FindRoute(nic, to, from, pkt.NetworkProtocolNumber, false)
	if err != nil {
		return true
	}
	defer route.Release()
	head := slices.Clone(pkt.TransportHeader().Slice())
	reply := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(route.MaxHeaderLength()) + len(head), Payload: pkt.Data().ToBuffer(),
	})
	defer reply.DecRef()
	reply.TransportProtocolNumber = pkt.TransportProtocolNumber
	if pkt.TransportProtocolNumber == udp.ProtocolNumber {
		h := header.UDP(head)
		if h.SourcePort() == 0 || h.DestinationPort() == 0 || int(h.Length()) != len(head)+pkt.Data().Size() {
			return true
		}
		source := h.SourcePort()
		h.SetSourcePort(h.DestinationPort())
		h.SetDestinationPort(source)
	} else {
		h := header.ICMPv4(head)
		if h.Type() != header.ICMPv4Echo {
			return true
		}
		h.SetType(header.ICMPv4EchoReply)
		h.SetChecksum(0)
		h.SetChecksum(header.ICMPv4Checksum(h, reply.Data().Checksum()))
	}
	copy(reply.TransportHeader().Push(len(head)), head)
	params := stack.NetworkHeaderParams{Protocol: pkt.TransportProtocolNumber, TTL: route.DefaultTTL()}
	_ = route.WritePacket(params, reply) // lost, if the queue is full
	return true
}

func hostAddress(address tcpip.Address) bool {
	addr, _ := netip.AddrFromSlice(address.AsSlice())
	return !addr.IsUnspecified() && !addr.IsMulticast() && addr != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// accept echoes until the client closes its side, on a goroutine per connection.
func (e *echo) accept(request *tcp.ForwarderRequest) {
	e.echoes.RLock()
	defer e.echoes.RUnlock()
	var queue waiter.Queue
	endpoint, err := request.CreateEndpoint(&queue)
	request.Complete(err != nil)
	if err != nil {
		return
	}
	endpoint.SocketOptions().SetKeepAlive(true)
	idle := tcpip.KeepaliveIdleOption(keepAliveIdle)
	_ = endpoint.SetSockOpt(&idle)
	conn := gonet.NewTCPConn(&queue, endpoint)
	defer conn.Close()
	_, _ = io.Copy(conn, conn) // the client sees how it ended
}

func (e *echo) receive(packet []byte) {
	protocol := gvisor4.ProtocolNumber
	if len(packet) > 0 && packet[0]>>4 == 6 {
		protocol = gvisor6.ProtocolNumber
	}
	buffered := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)})
	defer buffered.DecRef()
	e.endpoint.InjectInbound(protocol, buffered)
}

// send writes packets of the stack to a device until ctx ends, then returns nil.
func (e *echo) send(ctx context.Context, d *Device, watch Watch) error {
	batch := d.newBatch()
	for {
		packet := e.endpoint.ReadContext(ctx)
		if packet == nil { // ctx ended
			return nil
		}
		for packet != nil {
			view := packet.ToView()
			packet.DecRef()
			err := watch(Out, view.AsSlice())
			added := batch.add(view.AsSlice())
			view.Release()
			if err != nil {
				return err
			}
			packet = nil
			if added && len(batch.lengths) < cap(batch.lengths) {
				packet = e.endpoint.Read()
			}
		}
		if err := d.write(batch); err != nil {
			return err
		}
	}
}

func (e *echo) close() {
	e.stack.Close()
	e.endpoint.Close()
	e.echoes.Lock()
	defer e.echoes.Unlock()
	e.stack.Wait()
}
