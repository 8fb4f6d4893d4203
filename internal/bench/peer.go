// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

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
}

// thisMachine is the place of what runs outside of labs, in the network namespace
// of this process.
const thisMachine = "this machine"

// errNotFromHere says why a row is not measured with a peer.
var errNotFromHere = errors.New("with a peer only the way from this machine itself is measured: " +
	"for others its own network would have to be changed")

// fromHost reports whether a path needs no more than two machines as they are.
func (p path) fromHost() bool {
	return p.lab.Link == lab.LinkHost && p.route != nil && p.route.wire
}

// peerStand is this machine and another one.
type peerStand struct {
	client *traffic.Agent
	peer   *traffic.Peer
	ns     *nl.Namespace
}

// connect starts a client here, and connects to the peer.
func (s *stand) connect(ctx context.Context, o PeerOptions) (_ *peerStand, err error) {
	p := &peerStand{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.ns, err = nl.CurrentNamespace(); err != nil {
		return nil, err
	}
	if p.peer, err = traffic.DialPeer(ctx, o.Address, o.Token); err != nil {
		return nil, err
	}
	if err := p.peer.Listen(ctx, netip.AddrPort{}); err != nil {
		return nil, err
	}
	p.client, err = traffic.StartAgent(traffic.AgentOptions{Exe: s.exe, CPU: s.cpus.Client})
	return p, err
}

func (p *peerStand) close() error {
	var errs []error
	if p.client != nil {
		errs = append(errs, p.client.Close())
	}
	if p.peer != nil {
		errs = append(errs, p.peer.Close())
	}
	if p.ns != nil {
		errs = append(errs, p.ns.Close())
	}
	return errors.Join(errs...)
}

// devices are the counters of this machine's devices.
func (p *peerStand) devices() (counts, error) {
	c := counts{devices: map[device]result.DeviceCount{}}
	devices, err := p.ns.Devices()
	for _, d := range devices {
		key := device{thisMachine, d.Name}
		c.order = append(c.order, key)
		c.devices[key] = result.DeviceCount{Host: thisMachine, Name: d.Name, RxPackets: d.RxPackets, TxPackets: d.TxPackets}
	}
	return c, err
}

// take measures a cell once with the peer.
func (p *peerStand) take(ctx context.Context, spec traffic.Spec) (sample, error) {
	spec.Target = p.peer.Address()
	if err := p.peer.Limits().Check(spec); err != nil {
		return sample{}, err
	}
	before, err := p.devices()
	if err != nil {
		return sample{}, err
	}
	m, err := p.client.Run(ctx, spec)
	if err != nil {
		return sample{}, err
	}
	after, err := p.devices()
	if err != nil {
		return sample{}, err
	}
	s := sample{measurement: m, evidence: after.since(before)}
	addresses(&s.evidence, m)
	if s.evidence.Findings = peerFindings(s.evidence, m, spec); len(s.evidence.Findings) > 0 {
		return s, &pathError{s.evidence.Findings}
	}
	return s, nil
}

// peerFindings lists what does not fit a way to another machine.
func peerFindings(e result.Evidence, m traffic.Measurement, spec traffic.Spec) []string {
	var out []string
	if m.Count == 0 && spec.Rate <= proofRate {
		out = append(out, "nothing was transferred")
	}
	if m.ClientPeer != spec.Target {
		out = append(out, fmt.Sprintf("the client's peer is %s instead of %s", m.ClientPeer, spec.Target))
	}
	forth, back := m.Packets()
	left := func(d result.DeviceCount) bool { return d.Name != "lo" && d.TxPackets >= forth && d.RxPackets >= back }
	if !slices.ContainsFunc(e.Devices, left) {
		out = append(out, fmt.Sprintf("no device of this machine but lo counted %d packets", forth))
	}
	return out
}
