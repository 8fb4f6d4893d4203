// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/qdisc"
)

// Pod is a pod to attach to a network.
type Pod struct {
	// Namespace is the pod's. Nil for a pod that brings its own end of the link, as a VM, in modes with Traits.Guests.
	Namespace *netns.Namespace
	// IfName is the name of the pod's device, like "eth0". At most 15 bytes.
	IfName string
	// HostIfName is the name of the device on the host in modes with Traits.HostSide,
	// and of the switch's port in mode ovs-internal. At most 15 bytes.
	HostIfName string
	Addresses  []netip.Addr // the pod's, of either family or both
	// MAC is the address of the pod's device: 6 bytes, unicast. If it is nil, Create chooses one, and Check accepts
	// any. It is an error in the ipvlan modes, in modes with Traits.Layer3 and for a pod without a namespace.
	MAC net.HardwareAddr
	// Routes are additional routes. A default route among them replaces that through the gateway.
	Routes []Route
	// Secondary is true if the pod's default routes are on another device, or missing. Instead this device gets routes
	// to the network's own prefixes. Create leaves default routes without a priority out of Routes.
	Secondary bool
	// LinkOnly makes Create create the pod's device ready to send, without addresses and routes, so that the pod can
	// request addresses (DHCP). It is for modes with Traits.DHCP. Of the network it needs only the bridge or the uplink.
	LinkOnly bool
	// Linked makes Create configure the device of an earlier Create with LinkOnly. If
	// that fails the device stays, for another try or for Delete.
	Linked bool
}

// name returns the pod's name in errors: the name of its namespace, or of the host's end of its link.
func (p Pod) name() string {
	if p.Namespace == nil {
		return p.HostIfName
	}
	return p.Namespace.Name()
}

// Attachment is the result of Create. The fields of the host's device are empty in modes without Traits.HostSide. For
// a pod without a namespace, Prefixes, Routes and MTU are the configuration for its own end.
type Attachment struct {
	// IfName is Pod.IfName, except in mode ovs-internal on the kernel's datapath, where that is only an alternative name.
	IfName, HostIfName   string
	IfIndex, HostIfIndex int
	MAC, HostMAC         net.HardwareAddr
	Addresses            []netip.Addr
	// Prefixes are Addresses with the prefix lengths on the pod's device: the gateway's in modes with Traits.Switched,
	// otherwise all bits (/32, /128).
	Prefixes []netip.Prefix
	// Routes are the routes of the pod's device, without routes to its prefixes: a default route for each family of the
	// pod's addresses, in the order of Addresses, and Pod.Routes.
	Routes []Route
	MTU    int // of the pod's device in bytes
	// NodeMAC is the host's MAC on the pod's link: the MAC of the pod's next hop, unless the next hop is another router.
	NodeMAC net.HardwareAddr
}

// Endpoint is the place at which eBPF programs attach to a pod's link.
type Endpoint struct {
	// Namespace and IfName locate the pod's device; Host is the namespace on the other side.
	Namespace, Host *netns.Namespace
	IfName          string
	// HostIfName is the host's device of the pod where the two are not peers in the kernel: in modes with NeedsRelay.
	HostIfName string
	// Segment is the host's device that represents all pods that reach each other by MAC address through Open vSwitch.
	// It is set if programs have to attach to the pods' own devices. This applies to ports that are the pods' devices,
	// and to a switch in user space, which reads packets before a program on the host could.
	Segment string
}

// Endpoint returns the place at which eBPF programs attach to the link of a pod that the mode created in the network.
func (n Network) Endpoint(mode Mode, pod Pod) (_ Endpoint, err error) {
	out := Endpoint{Namespace: pod.Namespace, Host: n.Host, IfName: pod.IfName}
	switch traits := mode.Traits(); {
	case traits.Needs == NeedsRelay:
		out.HostIfName = pod.HostIfName
	case traits.Needs == NeedsOpenVSwitch && !traits.HostSide:
		out.Segment = n.bridge()
	case traits.Needs == NeedsOpenVSwitch:
		datapath, err := n.ovsDatapath()
		if err != nil {
			return Endpoint{}, err
		}
		if datapath == ovs.UserSpace {
			out.Segment = n.bridge()
		}
	}
	return out, nil
}

// validate validates a pod of a valid network. It compares the namespaces, but changes nothing. A guest can lack one.
func (p Pod) validate(network Network, guest bool) error {
	if p.Namespace != nil || !guest {
		if err := p.validateNamespace(network); err != nil {
			return err
		}
	}
	return p.validateAddresses(network)
}

func (p Pod) validateLinkOnly(network Network) error {
	if err := network.validate(); err != nil {
		return err
	}
	if len(p.Addresses) > 0 {
		return errors.New("a pod with DHCP must not list addresses")
	}
	return cmp.Or(p.validateMAC(), p.validateNamespace(network))
}

func (p Pod) validateNamespace(network Network) error {
	if p.Namespace == nil {
		return errors.New("no namespace for the pod")
	}
	pod, err := p.Namespace.Inode()
	if err != nil {
		return err
	}
	host, err := network.Host.Inode()
	if err != nil {
		return err
	}
	if pod == host {
		return fmt.Errorf("namespace %q is both the pod's and the host's", p.Namespace.Name())
	}
	return p.validateIfName()
}

func (p Pod) validateIfName() error     { return validateName("pod's interface", p.IfName) }
func (p Pod) validateHostIfName() error { return validateName("host's interface", p.HostIfName) }

func (p Pod) validateAddresses(network Network) error {
	if err := p.validateMAC(); err != nil {
		return err
	}
	if p.LinkOnly {
		return errors.New("the link mode can't create a link for a pod that uses DHCP")
	}
	if len(p.Addresses) == 0 {
		return errors.New("no addresses for the pod")
	}
	for i, addr := range p.Addresses {
		if !isHostAddress(addr) {
			return fmt.Errorf("invalid pod address %v", addr)
		}
		if err := network.validateMTU(addr); err != nil {
			return err
		}
		if slices.Contains(p.Addresses[:i], addr) {
			return fmt.Errorf("duplicate pod address %v", addr)
		}
		if gateway, ok := network.gateway(addr); ok && gateway.Addr() == addr {
			return fmt.Errorf("pod's address %v is the gateway's", addr)
		}
		if slices.Contains(network.Routers, addr) {
			return fmt.Errorf("pod's address %v is a router's", addr)
		}
	}
	return nil
}

func (p Pod) validateMAC() error {
	switch {
	case p.MAC == nil:
		return nil
	case len(p.MAC) != 6:
		return fmt.Errorf("the pod's MAC address %q has %d bytes, not 6", p.MAC, len(p.MAC))
	case p.MAC[0]&1 != 0:
		return fmt.Errorf("the pod's MAC address %v is a multicast address", p.MAC)
	case !slices.ContainsFunc(p.MAC, func(b byte) bool { return b != 0 }):
		return fmt.Errorf("the pod's MAC address %v is all zero", p.MAC)
	case p.Namespace == nil:
		return fmt.Errorf("the pod's MAC address %v can't be set: no namespace for the pod", p.MAC)
	}
	return nil
}

// mac returns the MAC address of the pod's device: Pod.MAC, or a new one.
func (p Pod) mac() (net.HardwareAddr, error) {
	if p.MAC != nil {
		return p.MAC, nil
	}
	return newMAC()
}

// Bandwidth limits the rates at which a pod receives and sends. The zero value limits neither.
type Bandwidth struct {
	// ToPod is enforced where the host's device of the pod sends. It does not cover packets that a program delivers to
	// the pod past that device.
	ToPod qdisc.Limit
	// FromPod is enforced where the pod's own device sends; root in the pod can remove this limit. In modes with
	// Traits.HostSide it is also enforced where the host's device receives, except with a switch in user space.
	FromPod qdisc.Limit
}

// Apply sets the limits of an attached pod, and removes limits that are zero. A limit to the pod needs a mode with
// Traits.HostSide, a limit from the pod a namespace. After an error some limits may be set. Limits end with the
// devices.
func (b Bandwidth) Apply(mode Mode, network Network, pod Pod) (err error) {
	defer wrap(&err, fmt.Sprintf("limit bandwidth of pod %q", pod.name()))
	limits, err := b.deviceLimits(mode, network, pod)
	if err != nil {
		return err
	}
	for _, l := range limits {
		if err := l.set(l.ns, l.device, l.limit); err != nil {
			return err
		}
	}
	return nil
}

// Check returns nil, or a *DeviationError that lists the deviations from the limits.
func (b Bandwidth) Check(mode Mode, network Network, pod Pod) (err error) {
	defer func() {
		if deviation := (*DeviationError)(nil); !errors.As(err, &deviation) {
			wrap(&err, fmt.Sprintf("check bandwidth of pod %q", pod.name()))
		}
	}()
	limits, err := b.deviceLimits(mode, network, pod)
	if err != nil {
		return err
	}
	var c checker
	for _, l := range limits {
		deviation, err := l.deviation(l.ns, l.device, l.limit)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			c.add("device %q is missing in %q", l.device, l.ns.Name())
		case err != nil:
			return err
		case deviation != "":
			c.add("device %q in %q %s", l.device, l.ns.Name(), deviation)
		}
	}
	return c.result(mode, pod)
}

func (c *checker) result(mode Mode, pod Pod) error {
	if len(c.found) == 0 {
		return nil
	}
	return &DeviationError{Mode: mode.Name(), Pod: pod.name(), Deviations: c.found}
}

// deviceLimit limits the packets that a device sends to a pod, sends from it, or receives from it.
type deviceLimit struct {
	ns        *netns.Namespace
	device    string
	limit     qdisc.Limit
	set       func(*netns.Namespace, string, qdisc.Limit) error
	deviation func(*netns.Namespace, string, qdisc.Limit) (string, error)
}

func (b Bandwidth) deviceLimits(mode Mode, network Network, pod Pod) ([]deviceLimit, error) {
	var limits []deviceLimit
	switch {
	case mode.Traits().HostSide:
		if err := cmp.Or(network.validateHost(), pod.validateHostIfName()); err != nil {
			return nil, err
		}
		limits = append(limits, deviceLimit{network.Host, pod.HostIfName, b.ToPod, qdisc.SetLimit, qdisc.Deviation},
			deviceLimit{network.Host, pod.HostIfName, b.FromPod, qdisc.SetPolice, qdisc.PoliceDeviation})
	case b.ToPod.Rate != 0:
		return nil, fmt.Errorf("link mode %s can't limit traffic to a pod: it lacks a device of the pod on the host",
			mode.Name())
	}
	switch {
	case pod.Namespace != nil:
		if err := pod.validateIfName(); err != nil {
			return nil, err
		}
		limits = append(limits, deviceLimit{pod.Namespace, pod.IfName, b.FromPod, qdisc.SetLimit, qdisc.Deviation})
	case b.FromPod.Rate != 0:
		return nil, errors.New("traffic from a pod without a namespace can't be limited")
	}
	return limits, nil
}
