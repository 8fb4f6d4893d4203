// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// WireGuardName is the name of a node's WireGuard device, and WireGuardPort its default UDP port.
const (
	WireGuardName = "mst-wg"
	WireGuardPort = 51871
)

// Idle peers get a packet each keepalive, and handshakes are at most 120 s apart (whitepaper of WireGuard, section
// 6.1). A peer without a handshake for LateHandshake cannot be reached.
const (
	keepalive     = 25 * time.Second
	LateHandshake = 3 * time.Minute
)

type unsupportedError struct{}

func (unsupportedError) Error() string {
	return "this kernel lacks WireGuard: the module wireguard cannot be loaded (CONFIG_WIREGUARD, Linux 5.6)"
}

// Is makes it match errors.ErrUnsupported.
func (unsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// ProbeWireGuard returns an error that matches errors.ErrUnsupported if the kernel lacks WireGuard. The kernel loads
// the module for it.
func ProbeWireGuard() error {
	_, err := netlink.GenlFamilyGet("wireguard")
	if errors.Is(err, unix.ENOENT) {
		return unsupportedError{}
	}
	return err
}

func inWireGuard[T any](ns *netns.Namespace, do func(*wgctrl.Client) (T, error)) (T, error) {
	return netns.Get(ns, func() (none T, err error) {
		client, err := wgctrl.New()
		if err != nil {
			return none, fmt.Errorf("configure WireGuard: %w", err)
		}
		defer client.Close()
		return do(client)
	})
}

// readWireGuard returns the state of the device; nil: there is none.
func readWireGuard(ns *netns.Namespace) (*wgtypes.Device, error) {
	return inWireGuard(ns, func(c *wgctrl.Client) (*wgtypes.Device, error) {
		d, err := c.Device(WireGuardName)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read device %q: %w", WireGuardName, err)
		}
		return d, nil
	})
}

// wireguard finds the WireGuard device.
func (h host) wireguard() (device, error) {
	link, err := h.LinkByName(WireGuardName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return device{}, nil
	}
	if err != nil {
		return device{}, fmt.Errorf("device %q: %w", WireGuardName, err)
	}
	if link.Type() != (&netlink.Wireguard{}).Type() {
		return device{}, nil
	}
	return device{link.Attrs().Index, link}, nil
}

// setUpWireGuard sets up the device with the key, the addresses and the peers of a plan. It changes only differences:
// the kernel forgets the sessions of a peer that is removed, and all sessions with another key.
func (n *Network) setUpWireGuard(h host, want plan) error {
	have, err := h.wireguard()
	if err != nil {
		return err
	}
	fail := func(what string, err error) error { return fmt.Errorf("%s of device %q: %w", what, WireGuardName, err) }
	if want.mtu < leastIPv6 && slices.ContainsFunc(want.addresses, netip.Addr.Is6) {
		return fmt.Errorf("pods with IPv6 need an MTU of %d bytes in WireGuard, got %d: raise the MTU of the node's device",
			leastIPv6, want.mtu)
	}
	if have.index == 0 {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = WireGuardName, want.mtu
		if err := h.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
			if errors.Is(err, unix.EEXIST) {
				err = errors.New("a device of that name exists, and the agent did not create it")
			}
			return fmt.Errorf("add WireGuard device %q: %w", WireGuardName, err)
		}
		if have, err = h.wireguard(); err != nil {
			return err
		}
	}
	if have.link.Attrs().MTU != want.mtu {
		if err := h.LinkSetMTU(have.link, want.mtu); err != nil {
			return fail(fmt.Sprintf("set MTU %d", want.mtu), err)
		}
	}
	err = n.setWireGuardPeers(want)
	if err == nil && have.link.Attrs().Flags&net.FlagUp == 0 {
		if err = h.SetSysctl("net/ipv6/conf/"+WireGuardName+"/addr_gen_mode", "1"); errors.Is(err, fs.ErrNotExist) {
			err = nil // a kernel without IPv6
		}
		err = errors.Join(err, h.LinkSetUp(have.link))
	}
	if err != nil {
		return fail(fmt.Sprintf("set key, UDP port %d or peers", n.Encryption.Port), err)
	}
	return h.setAddresses(have.link, want.addresses)
}

func (n *Network) setWireGuardPeers(want plan) error {
	have, err := readWireGuard(n.Host)
	if err == nil && have == nil {
		err = errors.New("the device is gone")
	}
	if err != nil {
		return err
	}
	var config wgtypes.Config
	if key := n.Encryption.Key.key; have.PrivateKey != key {
		config.PrivateKey = &key
	}
	if port := int(n.Encryption.Port); have.ListenPort != port {
		config.ListenPort = &port
	}
	there := map[wgtypes.Key]wgtypes.Peer{}
	for _, p := range have.Peers {
		there[p.PublicKey] = p
		if !slices.ContainsFunc(want.peers, func(w peer) bool { return w.key == p.PublicKey }) {
			config.Peers = append(config.Peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
		}
	}
	for _, p := range want.peers {
		if p.lacks(there, n.Encryption.Port) == nil {
			continue
		}
		interval := keepalive
		add := wgtypes.PeerConfig{PublicKey: p.key, PersistentKeepaliveInterval: &interval, ReplaceAllowedIPs: true,
			Endpoint: net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.underlay, n.Encryption.Port))}
		for _, r := range p.ranges {
			add.AllowedIPs = append(add.AllowedIPs, *rtnl.DeviceAddress(r).IPNet)
		}
		config.Peers = append(config.Peers, add)
	}
	if config.PrivateKey == nil && config.ListenPort == nil && config.Peers == nil {
		return nil
	}
	_, err = inWireGuard(n.Host, func(c *wgctrl.Client) (struct{}, error) {
		return struct{}{}, c.ConfigureDevice(WireGuardName, config)
	})
	return err
}

// lacks returns what the device lacks of a peer; nil: nothing.
func (p peer) lacks(have map[wgtypes.Key]wgtypes.Peer, port uint16) error {
	there, ok := have[p.key]
	if !ok {
		return fmt.Errorf("device %s lacks the peer %v", WireGuardName, p.key)
	}
	var ranges []netip.Prefix
	for _, r := range there.AllowedIPs {
		ranges = append(ranges, rtnl.Prefix(&r))
	}
	want := slices.SortedFunc(slices.Values(p.ranges), netip.Prefix.Compare)
	slices.SortFunc(ranges, netip.Prefix.Compare)
	at := netip.AddrPortFrom(p.underlay, port)
	elsewhere := there.Endpoint == nil || netip.AddrPortFrom(there.Endpoint.AddrPort().Addr().Unmap(),
		uint16(there.Endpoint.Port)) != at
	// A node can send from another address, which the kernel then answers.
	if elsewhere && time.Since(there.LastHandshakeTime) > LateHandshake || !slices.Equal(ranges, want) {
		return fmt.Errorf("device %s has the peer %v at %v for %v, not at %v for %v", WireGuardName, p.key,
			there.Endpoint, ranges, p.underlay, want)
	}
	return nil
}

// peersOf returns the peers of a device by key.
func peersOf(d *wgtypes.Device) map[wgtypes.Key]wgtypes.Peer {
	have := map[wgtypes.Key]wgtypes.Peer{}
	if d != nil {
		for _, p := range d.Peers {
			have[p.PublicKey] = p
		}
	}
	return have
}

// leastIPv6 is the least MTU of IPv6 (RFC 8200, section 5).
const leastIPv6 = 1280

// known is the node of a peer, and the time of its first Apply.
type known struct {
	node  string
	since time.Time
}

func (n *Network) know(peers []peer) {
	next, before := map[wgtypes.Key]known{}, n.known.Load()
	for _, p := range peers {
		next[p.key] = known{p.node, time.Now()}
		if before != nil {
			if k, ok := (*before)[p.key]; ok {
				next[p.key] = known{p.node, k.since}
			}
		}
	}
	n.known.Store(&next)
}

// WithoutHandshake returns the sorted names of nodes that are peers for LateHandshake, and had no handshake in it.
func (n *Network) WithoutHandshake() ([]string, error) {
	all := n.known.Load()
	if all == nil || n.Routing != WireGuard {
		return nil, nil
	}
	d, err := readWireGuard(n.Host)
	var late []string
	there := peersOf(d)
	for key, k := range *all {
		if time.Since(k.since) > LateHandshake && time.Since(there[key].LastHandshakeTime) > LateHandshake {
			late = append(late, k.node)
		}
	}
	slices.SortFunc(late, strings.Compare)
	return late, err
}
