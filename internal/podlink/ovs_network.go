// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ovs is what the modes of Open vSwitch share: the bridge, whose own device has
// the gateways' addresses.
type ovs struct{ name string }

func (ovs) sealed() {}

// Name implements Mode.
func (o ovs) Name() string { return o.name }

// Routed is false: Open vSwitch switches.
func (ovs) Routed() bool { return false }

// Switched is true.
func (ovs) Switched() bool { return true }

// Needs implements Mode.
func (ovs) Needs() Need { return NeedsOpenVSwitch }

// needsOVS is met by either datapath: the user-space one needs TAP devices.
func needsOVS() requirement {
	return requirement{
		feature: "datapath of Open vSwitch nor TAP devices", module: "openvswitch or tun", since: "3.3",
		try: func(s side) error {
			if hasKernelDatapath(s.ns) {
				return nil
			}
			if err := hasTAP(); err != nil {
				return errors.Join(unix.EOPNOTSUPP, err)
			}
			return nil
		},
	}
}

// Setup adds the bridge, gives it the gateways' addresses, switches forwarding
// on, and joins it to other hosts.
func (o ovs) Setup(network Network) (err error) {
	defer wrap(&err, "set up "+o.name+" network")
	if err := o.validateNetwork(network); err != nil {
		return err
	}
	host, err := openSide(network.Host)
	if err != nil {
		return err
	}
	defer host.Close()
	s, err := openSwitch(network)
	if err != nil {
		return err
	}
	defer s.close()
	created, err := o.ensure(host, s, network)
	var undo func() error
	defer func() {
		switch {
		case err == nil:
		case created:
			err = errors.Join(err, o.remove(s, network))
		case undo != nil:
			err = errors.Join(err, undo())
		}
	}()
	if err != nil {
		return err
	}
	link, err := host.link(network.bridge())
	if err != nil {
		return err
	}
	if err := apply(host.ns, device(network.bridge(), network.Gateways)); err != nil {
		return err
	}
	if err := host.up(link); err != nil {
		return err
	}
	if err := host.leaveRouters(link, network); err != nil {
		return err
	}
	if undo, err = host.addGateways(link, network.Gateways); err != nil {
		return err
	}
	if err := apply(host.ns, forwarding()); err != nil {
		return err
	}
	return s.join(host, network)
}

// ensure adds the bridge, if it is not there. One whose device has gone is added
// anew, without ports.
func (o ovs) ensure(host side, s ovsSwitch, network Network) (created bool, err error) {
	name := network.bridge()
	bridge, err := s.bridge(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err == nil {
		link, err := host.link(name)
		switch {
		case err == nil && kindOf(link) != bridge.internalKind():
			return false, fmt.Errorf("device %q in %q is a %s, not the bridge of Open vSwitch: %w",
				name, host.ns.Name(), kindOf(link), fs.ErrExist)
		case err == nil:
			return false, s.repair(bridge)
		case !errors.Is(err, fs.ErrNotExist):
			return false, err
		}
		if err := s.deleteBridge(bridge); err != nil {
			return false, err
		}
	}
	if err := host.mustBeFree(name); err != nil {
		return false, err
	}
	datapath, err := s.bestDatapath(host.ns)
	if err != nil {
		return false, err
	}
	mac, err := newMAC()
	if err != nil {
		return false, err
	}
	return true, s.addBridge(name, datapath, mac.String(), network.mtu())
}

// Teardown deletes the bridge.
func (o ovs) Teardown(network Network) (err error) {
	defer wrap(&err, "tear down "+o.name+" network")
	if err := network.validateHost(); err != nil {
		return err
	}
	s, err := openSwitch(network)
	if err != nil {
		return err
	}
	defer s.close()
	return o.remove(s, network)
}

// remove deletes the bridge, if it is there.
func (ovs) remove(s ovsSwitch, network Network) error {
	bridge, err := s.bridge(network.bridge())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !ours(bridge.ExternalIDs) {
		return fmt.Errorf("bridge %q of Open vSwitch is not ours", network.bridge())
	}
	return s.deleteBridge(bridge)
}

func (ovs) validateNetwork(network Network) error {
	if err := network.validateSwitched(); err != nil {
		return err
	}
	if network.OVSDB == "" {
		return errors.New("the network has no Open vSwitch")
	}
	return nil
}

// validate returns the configuration of a pod's device, without its kind.
func (o ovs) validate(network Network, pod Pod) (interior, error) {
	if err := o.validateNetwork(network); err != nil {
		return interior{}, err
	}
	if err := pod.validateEnds(network); err != nil {
		return interior{}, err
	}
	return interior{mtu: network.mtu(), shared: true}.onGateways(network, pod)
}

// unplug is the Delete of modes whose port is an end of a pod's link. Without
// the switch the ends still go.
func (o ovs) unplug(w wiring, network Network, pod Pod) (err error) {
	defer wrap(&err, "delete "+o.name+" link")
	if err := pod.validateDelete(network); err != nil {
		return err
	}
	s, err := openSwitch(network)
	if err == nil {
		err = s.deletePort(pod.HostIfName)
		s.close()
	}
	return errors.Join(err, deleteEnds(w, network, pod))
}

// ovsPortSettings keep a port from taking part in the host's own network. The
// user-space datapath only listens in on its ports, so the host gets the packets
// too. It would answer ARP for its addresses there, and what asked reach it past
// the switch.
func ovsPortSettings(name string) []setting {
	return append(portSettings(name), setting{"net/ipv4/conf/" + name + "/arp_ignore", "8"})
}

// ovsWork is what Create and Check work on.
type ovsWork struct {
	host, inside side
	ovs          ovsSwitch
	closeSides   func()
}

func openWork(network Network, pod Pod) (ovsWork, error) {
	host, inside, closeSides, err := openSides(network, pod)
	if err != nil {
		return ovsWork{}, err
	}
	s, err := openSwitch(network)
	if err != nil {
		closeSides()
		return ovsWork{}, err
	}
	return ovsWork{host, inside, s, closeSides}, nil
}

func (w ovsWork) close() {
	w.ovs.close()
	w.closeSides()
}

// plugging is what Create works on: also a network's bridge, and its own device.
type plugging struct {
	ovsWork
	bridge ovsBridge
	master netlink.Link
}

func openPlugging(network Network, pod Pod) (p plugging, err error) {
	if p.ovsWork, err = openWork(network, pod); err != nil {
		return plugging{}, err
	}
	if p.bridge, err = p.ovs.bridge(network.bridge()); err == nil {
		p.master, err = p.host.link(network.bridge())
	}
	if err != nil {
		p.close()
		return plugging{}, err
	}
	return p, nil
}
