// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/netns"
)

// PeerOptions describe another machine that servers run on.
type PeerOptions struct {
	// Shell is the command line that runs a command there, such as {"ssh", "root@10.0.0.1"}; see [load.AgentOptions].
	Shell []string
	// Program is the name of mustang there; empty means "mustang".
	Program string
	// Address is the address there that clients connect to.
	Address netip.Addr
	// CPU is the CPU there that the server is pinned to; negative means none.
	CPU int
	// Uplink, if not zero, is the device on this machine that leads to the peer. Labs whose rows start in a pod share it.
	Uplink lab.UplinkDevice
}

// peer has a client on this machine and a server on the other one.
type peer struct {
	options   PeerOptions
	client    *load.Agent
	server    *load.Agent      // nil if it has to be started
	ns        *netns.Namespace // of this machine
	connected *lab.Lab         // the lab that is joined to the peer's network, if one is
}

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
	server, err := load.StartAgent(ctx, load.AgentOptions{Shell: p.options.Shell, Exe: p.options.Program,
		CPU: p.options.CPU})
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

func (p *peer) hangUp() (err error) {
	if p.server != nil {
		err = p.server.Close()
	}
	p.server = nil
	return err
}

// disconnect takes the lab that is connected off the peer's network.
func (p *peer) disconnect() (err error) {
	if p.connected != nil {
		err = p.connected.Disconnect()
	}
	p.connected = nil
	return err
}

func (p *peer) close() error {
	err := p.hangUp()
	if p.client != nil {
		err = errors.Join(err, p.client.Close())
	}
	if p.ns != nil {
		err = errors.Join(err, p.ns.Close())
	}
	return err
}

// peerLab returns a lab that is alone on the peer's network: all labs have the same addresses there.
func (t *testbed) peerLab(ctx context.Context, o lab.Options) (*lab.Lab, error) {
	if l := t.peer.connected; l != nil && l == t.labs[o] {
		return l, nil
	}
	if err := t.peer.disconnect(); err != nil {
		return nil, err
	}
	l, err := t.lab(ctx, o)
	if err != nil {
		return nil, err
	}
	t.peer.connected = l
	return l, l.Connect()
}

func (t *testbed) takeToPeer(ctx context.Context, p suites.Path, spec load.Spec) (_ sample, err error) {
	client := t.peer.client
	path, recorder := p.Path, evidence.Recorder{Machine: t.peer.ns}
	if !p.HostToHost() {
		if recorder.Lab, err = t.peerLab(ctx, p.Lab); err != nil {
			return sample{}, err
		}
		key, _ := keysOf(p)
		if client, err = t.agent(ctx, recorder.Lab, key); err != nil {
			return sample{}, err
		}
	}
	if err := t.peer.serve(ctx); err != nil {
		return sample{}, err
	}
	spec.Target = t.peer.server.Address()
	path.Connect, path.Listen = spec.Target, spec.Target
	return record(recorder, evidence.Flow{Path: path, MayLoseAll: spec.Rate > proofRate},
		func() (load.Measurement, error) { return client.Run(ctx, spec) })
}

func (o PeerOptions) notes() []string {
	notes := []string{"The server was another machine (--peer). CPU time is of the measuring machine: " +
		"the peer's of streams, this one's of request/response."}
	if o.Uplink != (lab.UplinkDevice{}) {
		notes = append(notes, fmt.Sprintf("Rows from a pod use a macvlan device on %s (--uplink), which is part of their "+
			"cost; those from this machine itself use %[1]s alone.", o.Uplink.Name))
	}
	return notes
}

// check returns an error if the uplink does not lead to the peer, or can't be shared. It changes nothing.
func (o PeerOptions) check() error {
	if o.Uplink == (lab.UplinkDevice{}) {
		return nil
	}
	if err := o.Uplink.Check(); err != nil {
		return err
	}
	peer, network := o.Address.Unmap(), o.Uplink.Host.Masked()
	switch {
	case !network.Contains(peer):
		return fmt.Errorf("peer %s: not in %s, the network of the uplink addresses", peer, network)
	case peer == o.Uplink.Host.Addr() || peer == o.Uplink.Pod.Addr():
		return fmt.Errorf("uplink address %s: the same as the peer's", peer)
	}
	device, err := net.InterfaceByName(o.Uplink.Name)
	switch {
	case err != nil:
		return fmt.Errorf("uplink %q: no such device", o.Uplink.Name)
	case device.Flags&net.FlagUp == 0:
		return fmt.Errorf("uplink %s: the device is down", device.Name)
	case len(device.HardwareAddr) != 6:
		return fmt.Errorf("uplink %s: not an Ethernet device", device.Name)
	}
	at, err1 := device.Addrs()
	all, err2 := net.InterfaceAddrs()
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("uplink %s: list addresses: %w", device.Name, err)
	}
	if !slices.ContainsFunc(prefixes(at), func(p netip.Prefix) bool { return p.Masked() == network }) {
		return fmt.Errorf("uplink %s: no address in %s, the network of the uplink addresses", device.Name, network)
	}
	for _, own := range []netip.Prefix{o.Uplink.Host, o.Uplink.Pod} {
		if slices.ContainsFunc(prefixes(all), func(p netip.Prefix) bool { return p.Addr() == own.Addr() }) {
			return fmt.Errorf("uplink address %s: already an address of this machine", own)
		}
	}
	return nil
}

func prefixes(addrs []net.Addr) (out []netip.Prefix) {
	for _, addr := range addrs {
		if prefix, err := netip.ParsePrefix(addr.String()); err == nil {
			out = append(out, prefix)
		}
	}
	return out
}
