// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

// PeerOptions name another machine that serves load (traffic.Serve).
type PeerOptions struct {
	// Address is where it listens.
	Address netip.AddrPort
	// Token is the secret that both machines know.
	Token []byte
	// Uplink, if not zero, is the device on the way to it, which the labs of paths from
	// a pod share.
	Uplink lab.Parent
}

// thisMachine is the place of what runs outside of labs, in the network namespace
// of this process.
const thisMachine = "this machine"

// errNotFromHere says why a row is not measured with a peer.
var errNotFromHere = errors.New("with a peer only ways from this machine itself are measured, " +
	"and with --uplink and --uplink-addresses those from a pod to another host (suite latency)")

// fromHost reports whether a path needs no more than two machines as they are.
func (p path) fromHost() bool {
	return p.lab.Link == lab.LinkHost && p.crossesWire()
}

// way is how a path leads to the peer, if it can.
func (o PeerOptions) way(p path) path {
	switch {
	case o.Uplink == (lab.Parent{}):
	case p.fromHost():
		p.lab.Parent = o.Uplink // no lab is built, but its packets pass the device
	case p.lab.Topology == podToHost:
		p.lab.Topology, p.lab.Parent, p.lab.WireRate, p.lab.WireDelay = podToNetwork, o.Uplink, 0, 0
		p.route = routeAcross(p.lab, ends{p.client, p.server})
	}
	return p
}

// notes are what readers of all rows should know.
func (o PeerOptions) notes() []string {
	notes := []string{"The server was another machine (--peer). CPU time is that of the machine that measures: " +
		"the peer's of streams, this one's of request/response."}
	if o.Uplink != (lab.Parent{}) {
		notes = append(notes, fmt.Sprintf("Ways from a pod go by a macvlan device on %s (--uplink), which is part of their cost; "+
			"that from this machine itself goes by %[1]s alone.", o.Uplink.Device))
	}
	return notes
}

// peerStand is this machine and another one.
type peerStand struct {
	options PeerOptions
	client  *traffic.Agent // on this machine
	ns      *nl.Namespace  // of this machine
	// session is the control connection, if one is open: from the pod of a lab, or
	// from this machine if at is nil.
	session *traffic.Peer
	at      *lab.Lab
	// connected is the lab that is joined to the peer's network, if one is.
	connected *lab.Lab
}

// connect starts a client here, and connects to the peer.
func (s *stand) connect(ctx context.Context, o PeerOptions) (_ *peerStand, err error) {
	p := &peerStand{options: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.ns, err = nl.CurrentNamespace(); err != nil {
		return nil, err
	}
	if err = p.dial(ctx, nil); err != nil {
		return nil, err
	}
	p.client, err = traffic.StartAgent(traffic.AgentOptions{Exe: s.exe, CPU: s.cpus.Client})
	return p, err
}

// A server that ends a session needs a moment until it takes the next.
const (
	busyTimeout = 5 * time.Second
	busyTry     = 20 * time.Millisecond
)

// dial opens a session from the pod of a lab, or from this machine if l is nil. The
// peer takes connections from the session's address alone, so there is one for each
// place that a client is in.
func (p *peerStand) dial(ctx context.Context, l *lab.Lab) error {
	if p.session != nil && p.at == l {
		return nil
	}
	if err := p.hangUp(); err != nil {
		return err
	}
	from := p.ns
	if l != nil {
		var err error
		if from, err = l.Namespace(lab.PodB); err != nil {
			return err
		}
	}
	var session *traffic.Peer
	for deadline := time.Now().Add(busyTimeout); ; time.Sleep(busyTry) {
		err := from.Do(func() (err error) {
			session, err = traffic.DialPeer(ctx, p.options.Address, p.options.Token)
			return err
		})
		if err == nil {
			break
		}
		if !errors.Is(err, traffic.ErrBusy) || time.Now().After(deadline) {
			return err
		}
	}
	if err := session.Listen(ctx, netip.AddrPort{}); err != nil {
		return errors.Join(err, session.Close())
	}
	p.session, p.at = session, l
	return nil
}

// hangUp ends the session, if one is open.
func (p *peerStand) hangUp() error {
	if p.session == nil {
		return nil
	}
	session := p.session
	p.session, p.at = nil, nil
	return session.Close()
}

// leave hangs up, and takes the lab that is connected off the peer's network.
func (p *peerStand) leave() error {
	err := p.hangUp()
	if p.connected != nil {
		err = errors.Join(err, p.connected.Disconnect())
		p.connected = nil
	}
	return err
}

func (p *peerStand) close() error {
	errs := []error{p.hangUp()}
	if p.client != nil {
		errs = append(errs, p.client.Close())
	}
	if p.ns != nil {
		errs = append(errs, p.ns.Close())
	}
	return errors.Join(errs...)
}

// peerLab returns a lab that is alone on the peer's network: all labs have the same
// addresses there.
func (s *stand) peerLab(ctx context.Context, o lab.Options) (*lab.Lab, error) {
	if l := s.peer.connected; l != nil && l == s.labs[o] {
		return l, nil
	}
	if err := s.peer.leave(); err != nil {
		return nil, err
	}
	l, err := s.lab(ctx, o)
	if err != nil {
		return nil, err
	}
	s.peer.connected = l
	return l, l.Connect()
}

// takeToPeer measures a cell once with the peer.
func (s *stand) takeToPeer(ctx context.Context, c cell, spec traffic.Spec) (_ sample, err error) {
	p := s.peer
	a := attempt{path: c.path, client: p.client, machine: p.ns}
	if !c.path.fromHost() {
		if a.lab, err = s.peerLab(ctx, c.path.lab); err != nil {
			return sample{}, err
		}
		if a.client, err = s.agent(ctx, agentKey{c.path.lab, c.path.client, netip.AddrPort{}}); err != nil {
			return sample{}, err
		}
	}
	if err := p.dial(ctx, a.lab); err != nil {
		return sample{}, err
	}
	spec.Target = p.session.Address()
	a.path.connect, a.path.listen = spec.Target, spec.Target
	if err := p.session.Limits().Check(spec); err != nil {
		return sample{}, err
	}
	return a.take(ctx, spec)
}

// fromHere lists what does not fit a way from this machine itself to another one.
// The other's address may be a translated one.
func (w witness) fromHere() []string {
	var out []string
	m, uplink := w.measurement, w.lab.Parent.Device
	if m.Count == 0 && !w.flooded {
		out = append(out, "nothing was transferred")
	}
	if m.ClientPeer != w.connect {
		out = append(out, fmt.Sprintf("the client's peer is %s instead of %s", m.ClientPeer, w.connect))
	}
	forth, back := w.packets()
	left := func(d result.DeviceCount) bool {
		return d.Name != "lo" && (uplink == "" || d.Name == uplink) && d.TxPackets >= forth && d.RxPackets >= back
	}
	if !slices.ContainsFunc(w.evidence.Devices, left) {
		by := "no device of this machine but lo"
		if uplink != "" {
			by = "not " + uplink
		}
		out = append(out, fmt.Sprintf("%s counted %d packets", by, forth))
	}
	return out
}
