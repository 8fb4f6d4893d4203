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

	"golang.org/x/sys/unix"
)

// DefaultPeerPort is the port of a server's control connections, where none is
// given.
const DefaultPeerPort = 5202

// ServeOptions say how to serve peers on other machines.
type ServeOptions struct {
	// Listen is where control connections come in. Data goes over the address that
	// the peer's control connection came to, and a port that the server chooses.
	Listen netip.AddrPort
	// Token is the secret that server and peers share, at least [MinToken] bytes.
	Token []byte
	// CPU is the CPU that load is served on; negative means any.
	CPU int
	// Limits bound what peers may ask for.
	Limits Limits
	// Agent says how to start the process that serves the load of a session; its CPU
	// is set from the option above.
	Agent AgentOptions
	// Ready, if not nil, is told the address once peers can connect.
	Ready func(netip.AddrPort)
	// Note, if not nil, is told in a line who came, went or was refused. It is called
	// from several goroutines.
	Note func(string)
}

// server is a running [Serve].
type server struct {
	ServeOptions
	door *door
	busy sync.Mutex // held by the one peer that is served
}

// Serve serves peers until ctx ends, which is no error: one at a time, the others
// are told that it is busy. A peer that has shown that it knows the token gets a
// server of the workloads for itself, an agent process that serves its address
// alone, within the limits, and ends with its control connection. Nothing else is
// offered to it, and nothing at all to others. When Serve returns, all is closed.
func Serve(ctx context.Context, o ServeOptions) error {
	if err := checkToken(o.Token); err != nil {
		return err
	}
	if err := checkListen(o.Listen); err != nil {
		return err
	}
	o.Limits = o.Limits.filled()
	o.Agent.CPU = o.CPU
	if o.Note == nil {
		o.Note = func(string) {}
	}
	listener, err := listenTCP(ctx, o.Listen)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	if o.Ready != nil {
		o.Ready(unmapped(listener.Addr()))
	}
	s := &server{ServeOptions: o, door: newDoor()}
	var peers sync.WaitGroup
	defer func() {
		cancel()
		_ = listener.Close()
		peers.Wait()
	}()
	for {
		conn, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // a connection that was reset, or no file descriptor left
			if err := sleep(ctx, 50*time.Millisecond); err != nil {
				return nil
			}
			continue
		}
		from := unmapped(conn.RemoteAddr())
		if err := s.door.enter(from.Addr()); err != nil {
			turnAway(conn, err)
			continue
		}
		peers.Go(func() { s.receive(ctx, conn, from) })
	}
}

// checkListen refuses what is no address of this machine's to listen on.
func checkListen(addr netip.AddrPort) error {
	switch {
	case !addr.IsValid():
		return errors.New("traffic: no address to listen on")
	case addr.Addr().Zone() != "" || addr.Addr().IsMulticast():
		return fmt.Errorf("traffic: can't serve on %s: want an address without a zone that is no multicast group", addr)
	}
	return nil
}

// sleep waits, or returns the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// turnAway tells a client why it may not even try. It waits for nothing, and is
// noted nowhere, so that a flood leaves no other.
func turnAway(conn net.Conn, reason error) {
	_ = conn.SetDeadline(time.Now().Add(10 * time.Millisecond))
	_ = newLineWriter(conn).write(greeting{Magic: peerMagic, Version: peerVersion, Error: reason.Error()})
	_ = conn.Close()
}

// receive finds out who has connected, and serves it if it is a peer.
func (s *server) receive(ctx context.Context, conn net.Conn, from netip.AddrPort) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now().Add(10 * time.Millisecond)) })()
	l := newLines(conn, maxLine)
	proof, err := authenticate(l, s.Token)
	s.door.leave(from.Addr(), err != nil && ctx.Err() == nil)
	if err != nil {
		s.Note(fmt.Sprintf("%s refused: %v", from, plainly(err)))
		return
	}
	if !s.busy.TryLock() {
		_ = l.write(welcome{Proof: proof, Error: ErrBusy.Error()})
		s.Note(fmt.Sprintf("%s refused: busy", from))
		return
	}
	defer s.busy.Unlock()
	if err := l.write(welcome{Proof: proof, Limits: s.Limits}); err != nil {
		return
	}
	s.Note(fmt.Sprintf("%s connected", from))
	err = s.session(ctx, l, from)
	if ctx.Err() != nil {
		err = errors.New("the server was stopped")
	}
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	_ = l.write(reply{Error: &wireError{Message: plainly(err).Error()}})
	s.Note(fmt.Sprintf("%s gone: %v", from, plainly(err)))
}

// plainly says what ended a connection without the words of the system's calls.
func plainly(err error) error {
	switch {
	case isTimeout(err):
		return errors.New("nothing heard for too long")
	case isGone(err):
		return errors.New("connection closed")
	}
	return err
}

// isTimeout tells whether a deadline has passed.
func isTimeout(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) && netErr.Timeout() || errors.Is(err, unix.ETIMEDOUT)
}
