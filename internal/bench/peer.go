// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/netns"
)

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

func (p *peer) serve(ctx context.Context) error {
	if p.server != nil {
		return nil
	}
	server, err := load.StartAgent(ctx, load.AgentOptions{Shell: p.options.Shell, Exe: p.options.Program,
		CPU: p.options.CPU, Congestion: lab.Congestion})
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

func (p *peer) hangUp() error {
	if p.server == nil {
		return nil
	}
	server := p.server
	p.server = nil
	return server.Close()
}

func (p *peer) disconnect() error {
	if p.connected == nil {
		return nil
	}
	l := p.connected
	p.connected = nil
	return l.Disconnect()
}

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

// PeerOptions describe another machine that servers run on.
type PeerOptions struct {
	// Shell is the command line that runs a command there, such as {"ssh", "root@10.0.0.1"}; see [load.AgentOptions].
	Shell   []string
	Program string     // the name of mustang there; empty means "mustang"
	Address netip.Addr // the address there that clients connect to
	CPU     int        // the CPU there that the server is pinned to; negative means none
	// Uplink, if not zero, is the device on this machine that leads to the peer. Labs whose rows start in a pod share it.
	Uplink lab.UplinkDevice
}

func (o PeerOptions) notes() []string {
	notes := []string{"The server was another machine (--peer). CPU time is of the measuring machine: " +
		"the peer's of streams, this one's of request/response."}
	if o.Uplink != (lab.UplinkDevice{}) {
		notes = append(notes,
			fmt.Sprintf("Rows from a pod use a macvlan device on %s (--uplink), which is part of their cost; "+
				"those from this machine itself use %[1]s alone.", o.Uplink.Name))
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
	addrs, err := device.Addrs()
	if err != nil {
		return fmt.Errorf("uplink %s: list its addresses: %w", device.Name, err)
	}
	if !contains(addrs, func(p netip.Prefix) bool { return p.Masked() == network }) {
		return fmt.Errorf("uplink %s: no address in %s, the network of the uplink addresses", device.Name, network)
	}
	if addrs, err = net.InterfaceAddrs(); err != nil {
		return fmt.Errorf("list this machine's addresses: %w", err)
	}
	for _, own := range []netip.Prefix{o.Uplink.Host, o.Uplink.Pod} {
		if contains(addrs, func(p netip.Prefix) bool { return p.Addr() == own.Addr() }) {
			return fmt.Errorf("uplink address %s: already an address of this machine", own)
		}
	}
	return nil
}

func contains(addrs []net.Addr, fits func(netip.Prefix) bool) bool {
	for _, addr := range addrs {
		if prefix, err := netip.ParsePrefix(addr.String()); err == nil && fits(prefix) {
			return true
		}
	}
	return false
}
