// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// opPing is what a peer sends while it has nothing to ask for.
const opPing = "ping"

// commandTimeout is how long the agent of a session may take for what a peer asks
// for.
const commandTimeout = 10 * time.Second

// session serves a peer's commands until its control connection ends or the limits
// are reached, and says why it ended. The agent that serves its load ends with it.
func (s *server) session(ctx context.Context, l *lines, from netip.AddrPort) (err error) {
	agent, err := StartAgent(s.Agent)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, agent.Close()) }()
	local := unmapped(l.conn.LocalAddr()).Addr()
	guard := &guard{Peer: from.Addr(), Limits: s.Limits}
	ending := time.Now().Add(s.Limits.Session)
	for {
		if time.Now().After(ending) {
			return fmt.Errorf("a session lasts %v at most", s.Limits.Session)
		}
		if err := l.conn.SetDeadline(time.Now().Add(s.Limits.Idle)); err != nil {
			return err
		}
		if ctx.Err() != nil { // or its end would be overruled by the deadline just set
			return ctx.Err()
		}
		var c command
		if err := l.read(&c); err != nil {
			return err
		}
		r, err := obeyPeer(ctx, agent, c, func(ctx context.Context) error {
			return agent.listen(ctx, netip.AddrPortFrom(local, 0), guard)
		})
		if err != nil {
			return err
		}
		if err := l.write(r); err != nil {
			return err
		}
	}
}

// obeyPeer does one command of a peer. A second listen leaves all as it is. Only a
// command that there is not is an error.
func obeyPeer(ctx context.Context, agent *Agent, c command, listen func(context.Context) error) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	r := reply{ID: c.ID}
	switch c.Op {
	case opPing:
	case opListen:
		if !agent.Address().IsValid() {
			r.Error = toWire(listen(ctx))
		}
		r.Address = agent.Address()
	case opLast:
		served, err := agent.Last(ctx)
		if r.Error = toWire(err); err == nil {
			r.Served = &served
		}
	default:
		return reply{}, errors.New("unknown command")
	}
	return r, nil
}

// isGone tells whether the other end has closed the connection.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}
