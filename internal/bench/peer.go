// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/netns"
)

// peer has a client on this machine and a server on the other one.
type peer struct {
	options PeerOptions
	client  *load.Agent
	server  *load.Agent      // nil if it has to be started
	ns      *netns.Namespace // of this machine
	// connected is the lab that is joined to the peer's network, if one is.
	connected *lab.Lab
}

// connectPeer starts the server on the peer, and a client here.
func connectPeer(ctx context.Context, o PeerOptions, client load.AgentOptions) (_ *peer, err error) {
	p := &peer{options: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.ns, err = netns.Current(); err != nil {
		return nil, err
	}
	if err = p.serve(ctx); err != nil {
		return nil, err
	}
	p.client, err = load.StartAgent(ctx, client)
	return p, err
}

// serve starts the server, unless it runs.
func (p *peer) serve(ctx context.Context) error {
	if p.server != nil {
		return nil
	}
	server, err := load.StartAgent(ctx, load.AgentOptions{Shell: p.options.Shell, Exe: p.options.Program, CPU: p.options.CPU})
	if err != nil {
		return err
	}
	if err := server.Listen(ctx, netip.AddrPortFrom(p.options.Address, 0)); err != nil {
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			err = fmt.Errorf("%w: the peer does not have this address", err)
		}
		return errors.Join(err, server.Close())
	}
	p.server = server
	return nil
}

// hangUp ends the server.
func (p *peer) hangUp() error {
	if p.server == nil {
		return nil
	}
	server := p.server
	p.server = nil
	return server.Close()
}

// disconnect takes the lab that is connected off the peer's network.
func (p *peer) disconnect() error {
	if p.connected == nil {
		return nil
	}
	l := p.connected
	p.connected = nil
	return l.Disconnect()
}

// explain returns the reason why the server has ended, if a run failed for it.
func (p *peer) explain(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, _ = p.server.Last(ctx) // returns when the server answers or has ended
	if ended := p.server.Err(); ended != nil {
		return fmt.Errorf("%s %w", p.server, ended)
	}
	return err
}

// answerTimeout is the time that a server has to answer after a failed run.
const answerTimeout = 5 * time.Second

func (p *peer) close() error {
	errs := []error{p.hangUp()}
	if p.client != nil {
		errs = append(errs, p.client.Close())
	}
	if p.ns != nil {
		errs = append(errs, p.ns.Close())
	}
	return errors.Join(errs...)
}
