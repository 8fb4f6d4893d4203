// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// nic is the number of the one device of the TCP stack.
	nic tcpip.NICID = 1
	// queueLength is how many packets the stack may have waiting to be sent: more
	// than a connection's send buffer of 4 MiB is cut into, so that none is lost.
	queueLength = 4096
	// maxHandshakes is how many connections may be half open at once.
	maxHandshakes = 1024
	// keepAliveIdle is how long a connection may be silent before its other end is
	// asked whether it is there still.
	keepAliveIdle = 30 * time.Second
)

// tcpEcho is a TCP stack that takes any address for its own (gVisor's netstack),
// and echoes on every port.
type tcpEcho struct {
	stack    *stack.Stack
	endpoint *channel.Endpoint

	mu     sync.Mutex
	closed bool           // no echo begins any more
	echoes sync.WaitGroup // those that have begun
}

// newTCPEcho makes a stack for packets of up to mtu bytes. The caller closes it.
func newTCPEcho(mtu int) (_ *tcpEcho, err error) {
	t := &tcpEcho{endpoint: channel.New(queueLength, uint32(mtu), "")}
	t.stack = stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			ipv4.NewProtocol,
			ipv6.NewProtocolWithOptions(ipv6.Options{}), // asks for no routers
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
		{"make its device", func() tcpip.Error { return t.stack.CreateNIC(nic, t.endpoint) }},
		{"take all addresses", func() tcpip.Error { return t.stack.SetPromiscuousMode(nic, true) }},
		{"answer from all addresses", func() tcpip.Error { return t.stack.SetSpoofing(nic, true) }},
		{"switch SACK on", func() tcpip.Error {
			on := tcpip.TCPSACKEnabled(true)
			return t.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &on)
		}},
		// With RACK, connections that lose packets now and then stall for ever
		// (github.com/tailscale/tailscale/pull/14934).
		{"switch RACK off", func() tcpip.Error {
			none := tcpip.TCPRecovery(0)
			return t.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &none)
		}},
		{"let the receive window grow", func() tcpip.Error {
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

// accept completes a handshake and echoes until the client closes its side. The
// stack calls it on a goroutine for each connection.
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
	_, _ = io.Copy(conn, conn) // how it ended is the client's business
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

// receive gives a packet to the stack, which ignores what is not TCP or about it.
func (t *tcpEcho) receive(packet []byte) {
	protocol := ipv4.ProtocolNumber
	if len(packet) > 0 && packet[0]>>4 == 6 {
		protocol = ipv6.ProtocolNumber
	}
	buffered := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)})
	defer buffered.DecRef()
	t.endpoint.InjectInbound(protocol, buffered)
}

// send writes what the stack sends to a device until ctx ends, which is no error.
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

// close ends all connections and waits until they have ended.
func (t *tcpEcho) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.stack.Close()
	t.endpoint.Close()
	t.echoes.Wait()
	t.stack.Wait()
}
