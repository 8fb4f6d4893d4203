// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Peer is a server on another machine ([Serve]), seen from a client. It stands in
// the place of an [Agent] that listens. Its methods may be called from several
// goroutines.
//
// The two machines have clocks of their own. What a [Measurement] says of CPU time
// is of either: ServerCPUSeconds of the server's process, ClientCPUSeconds of the
// client's, and Machine of the measuring side's machine. That is the peer's for
// streams, and the client's for request/response and for a stream whose datagrams
// are answered.
type Peer struct {
	address netip.AddrPort // of its control connection
	lines   *lines
	limits  Limits
	ended   chan struct{} // closed when there are no more replies

	mu      sync.Mutex
	nextID  uint64
	pending map[uint64]chan reply
	gone    error // why there are no more replies
	data    netip.AddrPort
}

// DialPeer connects to a server that knows the same token. The errors of a peer
// begin with its address, and never hold the token. One of a server that serves
// another peer matches [ErrBusy].
func DialPeer(ctx context.Context, addr netip.AddrPort, token []byte) (_ *Peer, err error) {
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	defer func() {
		if err != nil {
			err = fmt.Errorf("peer %s: %w", addr, err)
		}
	}()
	if err := checkToken(token); err != nil {
		return nil, err
	}
	if !addr.IsValid() || addr.Port() == 0 || addr.Addr().IsUnspecified() {
		return nil, errors.New("want an address with a port")
	}
	dialer := net.Dialer{Timeout: handshakeTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	// What waits for the server is ended by ctx, too.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	l := newLines(conn, maxReply)
	limits, err := introduce(l, token)
	ended := !stop()
	if ended || err != nil {
		_ = conn.Close()
		if ended {
			return nil, ctx.Err()
		}
		if isTimeout(err) {
			return nil, fmt.Errorf("no answer for %v", handshakeTimeout)
		}
		return nil, plainly(err)
	}
	_ = conn.SetDeadline(time.Time{})
	p := &Peer{address: addr, lines: l, limits: limits, ended: make(chan struct{}), pending: map[uint64]chan reply{}}
	go p.receive()
	go p.keep()
	return p, nil
}

// receive hands out replies until there are no more.
func (p *Peer) receive() {
	var err error
	for err == nil {
		var r reply
		if err = p.lines.read(&r); err != nil {
			break
		}
		if r.ID == 0 { // the server's last word
			err = errors.New("ended")
			if r.Error != nil {
				err = fmt.Errorf("ended: %.200s", r.Error.Message)
			}
			break
		}
		p.mu.Lock()
		ch := p.pending[r.ID]
		delete(p.pending, r.ID)
		p.mu.Unlock()
		if ch != nil {
			ch <- r
		}
	}
	_ = p.lines.conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone == nil {
		p.gone = plainly(err)
	}
	for _, ch := range p.pending {
		close(ch)
	}
	clear(p.pending)
	close(p.ended)
}

// keep tells the server now and then that the client is there.
func (p *Peer) keep() {
	ticker := time.NewTicker(max(p.limits.Idle/4, 10*time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-p.ended:
			return
		case <-ticker.C:
			ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
			_, _ = p.call(ctx, command{Op: opPing}) // who asks next hears what is wrong
			cancel()
		}
	}
}

// call sends a command and waits for its reply.
func (p *Peer) call(ctx context.Context, c command) (reply, error) {
	fail := func(err error) (reply, error) {
		return reply{}, fmt.Errorf("peer %s: %s: %w", p.address, c.Op, err)
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	ch := make(chan reply, 1)
	p.mu.Lock()
	gone := p.gone
	p.nextID++
	c.ID = p.nextID
	if gone == nil {
		p.pending[c.ID] = ch
		_ = p.lines.conn.SetWriteDeadline(time.Now().Add(commandTimeout))
	}
	p.mu.Unlock()
	if gone != nil {
		return fail(gone)
	}
	if err := p.lines.write(c); err != nil {
		_ = p.lines.conn.SetReadDeadline(time.Now().Add(time.Second)) // its last word tells more
	}
	timer := time.NewTimer(2 * commandTimeout)
	defer timer.Stop()
	select {
	case r, ok := <-ch:
		if !ok {
			return fail(p.reason())
		}
		if r.Error != nil {
			return reply{}, &RemoteError{Op: c.Op, Message: r.Error.Message, Errno: r.Error.Errno}
		}
		return r, nil
	case <-ctx.Done():
		p.forget(c.ID)
		return fail(ctx.Err())
	case <-timer.C:
		p.forget(c.ID)
		return fail(fmt.Errorf("no answer for %v", 2*commandTimeout))
	}
}

// forget gives up on a reply.
func (p *Peer) forget(id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pending, id)
}

// reason says why the peer is gone.
func (p *Peer) reason() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// Listen makes the peer a server of all workloads, for this machine alone, at a
// port that it chooses: see [Peer.Address]. addr is its address without a port, or
// the zero value. A second call changes nothing.
func (p *Peer) Listen(ctx context.Context, addr netip.AddrPort) error {
	if addr.Addr().IsValid() && addr.Addr().Unmap() != p.address.Addr() || addr.Port() != 0 {
		return fmt.Errorf("peer %s: it can't listen on %s: it serves on its own address, and chooses the port", p.address, addr)
	}
	r, err := p.call(ctx, command{Op: opListen})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.data = netip.AddrPortFrom(p.address.Addr(), r.Address.Port())
	return nil
}

// Address returns where the peer serves the workloads, once it listens.
func (p *Peer) Address() netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.data
}

// Limits returns what the peer allows. [Limits.Check] says whether it would run a
// spec.
func (p *Peer) Limits() Limits { return p.limits }

// Last returns what the peer saw of the last run that ended, as [Agent.Last] does.
func (p *Peer) Last(ctx context.Context) (Served, error) {
	r, err := p.call(ctx, command{Op: opLast})
	if err != nil {
		return Served{}, err
	}
	if r.Served == nil {
		return Served{}, fmt.Errorf("peer %s: last: nothing was served yet", p.address)
	}
	return *r.Served, nil
}

// Close ends the session, and with it all that the peer serves. A second call does
// nothing.
func (p *Peer) Close() error {
	p.mu.Lock()
	if p.gone == nil {
		p.gone = errors.New("closed")
	}
	p.mu.Unlock()
	_ = p.lines.conn.Close() // if it is closed, all the better
	<-p.ended
	return nil
}
