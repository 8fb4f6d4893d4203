// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// Namespace returns the cookie of the pod's network namespace; 0 if it has none.
func (e Endpoint) Namespace() uint64 { return e.netns }

// Segment returns the index of the host's device that pods without a host's side share, as a macvlan's or ipvlan's
// parent is; 0 if there is none.
func (e Endpoint) Segment() int { return int(e.segment) }

// Describe fills in what is not in the rows of endpoints: the device, its kind and link mode, the namespace, and
// whether the source guard is on. It takes no lock.
func (e Endpoints) Describe(all []Endpoint) error {
	if len(all) == 0 {
		return nil
	}
	if err := e.describeGuards(all); err != nil {
		return err
	}
	host, err := hostCookie(e.o)
	if err != nil {
		return err
	}
	at := map[uint64][]*Endpoint{}
	for i := range all {
		each := &all[i]
		cookie := each.netns
		if each.Host {
			cookie = host
		}
		at[cookie] = append(at[cookie], each)
	}
	devices := map[uint64][]rtnl.Device{} // by namespace
	err = eachNamespace(func(ns *netns.Namespace, cookie uint64) (err error) {
		wanted := len(at[cookie]) > 0
		for i := range all {
			if each := &all[i]; each.netns == cookie {
				each.Netns, wanted = cmp.Or(each.Netns, ns.Name()), true
			}
		}
		if _, known := devices[cookie]; wanted && !known {
			devices[cookie], err = rtnl.In(ns).Devices()
		}
		return err
	})
	for cookie, here := range at {
		for _, each := range here {
			describe(each, devices[cookie], devices[each.netns])
		}
	}
	return err
}

// describeGuards fills in what the source guard knows of endpoints.
func (e Endpoints) describeGuards(all []Endpoint) error {
	for i := range all {
		each := &all[i]
		sender, known, err := e.o.Senders.Get(device.SenderKey(each.Host, each.netns, each.IfIndex))
		if err != nil {
			return err
		}
		each.Guarded = !known || sender.Flags&objects.SenderUnguarded == 0 // of a device that it does not know, it drops all
		each.Allowed, each.LinkLocal = nil, netip.Addr{}
		if local := rows.DecodeAddr(sender.LinkLocal); known && local.IsLinkLocalUnicast() {
			each.LinkLocal = local
		}
		for _, p := range sender.Prefix[:sender.Prefixes] {
			each.Allowed = append(each.Allowed, rows.DecodePrefix(p.Addr, p.Mask))
		}
	}
	return nil
}

// describe fills in what the devices of the namespace tell that the endpoint's is in, and those of the pod: what comes
// by bpf_redirect_peer() is counted at the pod's end alone.
func describe(e *Endpoint, devices, inPod []rtnl.Device) {
	byIndex := func(devices []rtnl.Device, index int) *rtnl.Device {
		i := slices.IndexFunc(devices, func(d rtnl.Device) bool { return index != 0 && d.Index == index })
		if i < 0 {
			return nil
		}
		return &devices[i]
	}
	d := byIndex(devices, e.IfIndex)
	if d == nil {
		return
	}
	e.Kind, e.Device = d.Kind, d.Name
	e.Layer3, e.Ethernet = d.Layer3, len(d.MAC) > 0
	if master := byIndex(devices, d.MasterIndex); master != nil {
		e.Master = master.Kind
	}
	e.Sent, e.Received = Traffic{Packets: d.TxPackets, Bytes: d.TxBytes}, Traffic{Packets: d.RxPackets, Bytes: d.RxBytes}
	if !e.Host {
		return
	}
	e.Sent, e.Received = e.Received, e.Sent
	if peer := byIndex(inPod, d.PeerIndex); peer != nil && peer.PeerIndex == d.Index {
		e.Received = Traffic{Packets: peer.RxPackets, Bytes: peer.RxBytes}
	}
}

// refuseTaken returns a *ConflictError if the host or a service has an address of the pod: the pod would get the host's
// packets, and nobody would reach it at a service's.
func (e Endpoints) refuseTaken(spec EndpointSpec, t target) error {
	own, err := t.HostHas()
	if err != nil {
		return err
	}
	if own.IsValid() {
		return &ConflictError{What: fmt.Sprintf("interface %s: its address %s belongs to the host", spec, own)}
	}
	return e.refuseServices(t.Addresses, "interface "+spec.String())
}

// refuseServices returns a *ConflictError if a service has one of the addresses of a pod.
func (e Endpoints) refuseServices(addresses []netip.Addr, of string) error {
	for _, addr := range addresses {
		_, taken, err := e.o.ServiceAddrs.Get(rows.EncodeAddr(addr))
		if err != nil {
			return err
		}
		if taken {
			return &ConflictError{What: fmt.Sprintf("%s: its address %s belongs to a service", of, addr)}
		}
	}
	return nil
}

// refuseNamed returns a *ConflictError if the command line has added another pod by the name of this one, and that is
// alive: policies would not tell them apart. Devices in one network namespace are of one pod.
func (e Endpoints) refuseNamed(t target) error {
	if t.Pod == nil || t.Pod.Name == "" || t.Owner != service.CLI {
		return nil
	}
	ids, err := policiesOf(e.o).Named(t.Pod.Namespace, t.Pod.Name)
	if err != nil || len(ids) == 0 {
		return err
	}
	others, err := e.matching(func(o Endpoint) bool { return slices.Contains(ids, o.ID) })
	if err != nil {
		return err
	}
	for _, o := range others {
		same := t.is(o) || o.netns != 0 && o.netns == t.Netns
		if slices.Contains(ids, o.ID) && !same && o.Owner == service.CLI && e.alive(o.ID) {
			return &ConflictError{What: fmt.Sprintf("pod %s/%s is endpoint %d (%s) already", t.Pod.Namespace, t.Pod.Name,
				o.ID, o.IP)}
		}
	}
	return nil
}
