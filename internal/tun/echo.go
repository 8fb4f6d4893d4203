// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	gvisor4 "gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	gvisor6 "gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
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
func (d Direction) String() string {
	if d == Out {
		return "out"
	}
	return "in"
}

// Watch receives the packets of a device. It must be safe for concurrent use and must not keep or change the packet.
type Watch func(direction Direction, packet []byte)

// Echo answers packets that are routed to a TUN device until ctx ends, which is no error: ICMP and ICMPv6 echo
// requests, UDP datagrams and TCP connections to any port. UDP datagrams and TCP streams are echoed. It answers for
// every destination address but multicast and broadcast. watch receives each packet, unless it is nil. Echo returns
// when all connections are closed.
func Echo(ctx context.Context, d *Device, watch Watch) error {
	if d.kind != TUN {
		return fmt.Errorf("%s: echo needs a TUN device", d)
	}
	if watch == nil {
		watch = func(Direction, []byte) {}
	}
	tcp, err := newTCPEcho(d.mtu)
	if err != nil {
		return fmt.Errorf("%s: %w", d, err)
	}
	defer tcp.close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return tcp.send(ctx, d, watch) })
	group.Go(func() error {
		answers := d.NewBatch()
		return d.Each(ctx, func(batch *Batch) error {
			for i := range batch.Len() {
				packet := batch.Packet(i)
				watch(In, packet)
				if answer(packet) {
					watch(Out, packet)
					answers.Add(packet)
					continue
				}
				tcp.receive(packet)
			}
			return d.Write(answers)
		})
	})
	return group.Wait()
}

// answerTTL is the TTL or hop limit of answers.
const answerTTL = 64

// answer turns an ICMP echo request or a UDP datagram into its answer, in place. It
// returns false, without a change, for other packets.
//
// It keeps no state: it swaps addresses and ports, which preserves the UDP checksum, and
// answers each fragment of a datagram.
func answer(packet []byte) bool {
	p := Decode(packet)
	if p.Malformed != "" || p.routed || !hostAddress(p.Source) || !hostAddress(p.Destination) {
		return false
	}
	udp := p.Protocol == unix.IPPROTO_UDP
	switch transport := packet[p.transport:]; {
	case !udp && !p.isICMP():
		return false
	case p.Offset > 0: // the first fragment has the transport header
	case udp && (p.SourcePort == 0 || p.DestinationPort == 0):
		return false
	case udp:
		swap(transport[:2], transport[2:4])
	default:
		reply, ok := echoReply(&p)
		if !ok {
			return false
		}
		setWord(transport, 0, uint16(reply)<<8|uint16(p.ICMPCode), 2)
	}
	if p.Family == 4 {
		swap(packet[12:16], packet[16:20])
		setWord(packet, 8, answerTTL<<8|uint16(packet[9]), 10)
	} else {
		swap(packet[8:24], packet[24:40])
		packet[7] = answerTTL
	}
	return true
}

// echoReply returns the ICMP type that answers an echo request.
func echoReply(p *Packet) (reply uint8, ok bool) {
	switch {
	case p.Family == 4 && p.ICMPType == uint8(ipv4.ICMPTypeEcho):
		return uint8(ipv4.ICMPTypeEchoReply), true
	case p.Family == 6 && p.ICMPType == uint8(ipv6.ICMPTypeEchoRequest):
		return uint8(ipv6.ICMPTypeEchoReply), true
	}
	return 0, false
}

// hostAddress reports whether an address is that of a single host.
func hostAddress(addr netip.Addr) bool {
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsMulticast() && addr != broadcast
}

// swap exchanges the contents of two slices of the same length.
func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// setWord sets the 16 bits at an offset and updates the checksum at another one (RFC 1624, equation 3).
func setWord(header []byte, at int, value uint16, checksumAt int) {
	old := binary.BigEndian.Uint16(header[at:])
	sum := uint32(^binary.BigEndian.Uint16(header[checksumAt:])) + uint32(^old) + uint32(value)
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(header[at:], value)
	binary.BigEndian.PutUint16(header[checksumAt:], ^uint16(sum))
}

const (
	// nic is the number of the one device of the TCP stack.
	nic tcpip.NICID = 1
	// queueLength is the length of the stack's send queue in packets: room for the
	// segments of a connection's send buffer of 4 MiB.
	queueLength = 4096
	// maxHandshakes limits the half-open connections.
	maxHandshakes = 1024
	// keepAliveIdle is the idle time before keep-alive probes.
	keepAliveIdle = 30 * time.Second
)

// tcpEcho is a TCP stack (gVisor's netstack) that accepts connections to every address and port, and echoes.
type tcpEcho struct {
	stack    *stack.Stack
	endpoint *channel.Endpoint

	mu     sync.Mutex
	closed bool           // no new echoes
	echoes sync.WaitGroup // running echoes
}

// newTCPEcho returns a stack for packets of up to mtu bytes. The caller closes it.
func newTCPEcho(mtu int) (_ *tcpEcho, err error) {
	t := &tcpEcho{endpoint: channel.New(queueLength, uint32(mtu), "")}
	t.stack = stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			gvisor4.NewProtocol,
			gvisor6.NewProtocolWithOptions(gvisor6.Options{}), // sends no router solicitations
		},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	steps := []struct {
		what string
		do   func() tcpip.Error
	}{
		{"create its device", func() tcpip.Error { return t.stack.CreateNIC(nic, t.endpoint) }},
		{"accept all addresses", func() tcpip.Error { return t.stack.SetPromiscuousMode(nic, true) }},
		{"answer from all addresses", func() tcpip.Error { return t.stack.SetSpoofing(nic, true) }},
		{"enable SACK", func() tcpip.Error {
			on := tcpip.TCPSACKEnabled(true)
			return t.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &on)
		}},
		// With RACK, connections with occasional loss stall for ever (github.com/tailscale/tailscale/pull/14934).
		{"disable RACK", func() tcpip.Error {
			none := tcpip.TCPRecovery(0)
			return t.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &none)
		}},
		{"enable receive window tuning", func() tcpip.Error {
			on := tcpip.TCPModerateReceiveBufferOption(true)
			return t.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &on)
		}},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			return nil, fmt.Errorf("TCP stack: %s: %w", step.what, errors.New(err.String()))
		}
	}
	t.stack.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nic},
		{Destination: header.IPv6EmptySubnet, NIC: nic},
	})
	forwarder := tcp.NewForwarder(t.stack, 0, maxHandshakes, t.accept)
	t.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, forwarder.HandlePacket)
	return t, nil
}

// accept completes a handshake and echoes until the client closes its side. The stack
// calls it on a goroutine per connection.
func (t *tcpEcho) accept(request *tcp.ForwarderRequest) {
	if !t.begin() {
		request.Complete(true)
		return
	}
	defer t.echoes.Done()
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

// begin counts an echo, unless the stack is closed.
func (t *tcpEcho) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.echoes.Add(1)
	}
	return !t.closed
}

// receive passes a packet to the stack, which ignores packets unrelated to TCP.
func (t *tcpEcho) receive(packet []byte) {
	protocol := gvisor4.ProtocolNumber
	if len(packet) > 0 && packet[0]>>4 == 6 {
		protocol = gvisor6.ProtocolNumber
	}
	buffered := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)})
	defer buffered.DecRef()
	t.endpoint.InjectInbound(protocol, buffered)
}

// send writes packets of the stack to a device until ctx ends, which is no error.
func (t *tcpEcho) send(ctx context.Context, d *Device, watch Watch) error {
	batch := d.NewBatch()
	for {
		packet := t.endpoint.ReadContext(ctx)
		if packet == nil { // ctx ended
			return nil
		}
		for packet != nil {
			view := packet.ToView()
			packet.DecRef()
			watch(Out, view.AsSlice())
			added := batch.Add(view.AsSlice())
			view.Release()
			packet = nil
			if added && batch.Len() < cap(batch.lengths) {
				packet = t.endpoint.Read()
			}
		}
		if err := d.Write(batch); err != nil {
			return err
		}
	}
}

// close resets all connections and waits for their echoes to end.
func (t *tcpEcho) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.stack.Close()
	t.endpoint.Close()
	t.echoes.Wait()
	t.stack.Wait()
}
