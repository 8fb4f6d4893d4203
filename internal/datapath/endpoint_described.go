// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"slices"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// Describe fills in what is not in the rows of endpoints: the kind of the device, and whether the source guard is on. It takes no lock.
func (e Endpoints) Describe(all []Endpoint) error {
	if len(all) == 0 {
		return nil
	}
	if err := e.o.OpenTables(); err != nil {
		return err
	}
	host, err := hostCookie(e.o)
	if err != nil {
		return err
	}
	at := map[uint64][]*Endpoint{}
	for i := range all {
		each := &all[i]
		sender, known, err := e.o.Senders.Get(device.SenderKey(each.Host, each.netns, each.IfIndex))
		if err != nil {
			return err
		}
		each.Guarded = !known || sender.Flags&objects.SenderUnguarded == 0 // of a device that it does not know, it drops all
		cookie := each.netns
		if each.Host {
			cookie = host
		}
		at[cookie] = append(at[cookie], each)
	}
	return eachNamespace(func(ns *netns.Namespace, cookie uint64) error {
		here := at[cookie]
		if len(here) == 0 {
			return nil
		}
		delete(at, cookie)
		devices, err := rtnl.In(ns).Devices()
		if err != nil {
			return err
		}
		for _, each := range here {
			if i := slices.IndexFunc(devices, func(d rtnl.Device) bool { return d.Index == each.IfIndex }); i >= 0 {
				each.Kind = devices[i].Kind
			}
		}
		return nil
	})
}

// refuseTaken returns a *ConflictError if the host or a service has an address of the pod: the pod would get the host's
// packets, and nobody would reach it at a service's.
func (e Endpoints) refuseTaken(spec EndpointSpec, t target) error {
	own, err := t.HostHas()
	if err != nil {
		return err
	}
	if own.IsValid() {
		return &ConflictError{What: fmt.Sprintf("interface %s: its address %s is that of the host", spec, own)}
	}
	if err := e.o.OpenTables(); err != nil {
		return err
	}
	for _, addr := range t.Addresses {
		n, _, err := e.o.Addresses.Get(rows.EncodeAddr(addr))
		if err != nil {
			return err
		}
		if n > 0 {
			return &ConflictError{What: fmt.Sprintf("interface %s: its address %s is that of a service", spec, addr)}
		}
	}
	return nil
}

// refuseNamed returns a *ConflictError if the command line has added another pod by the name of this one, and that is alive: policies
// would not tell them apart. Devices in one network namespace are of one pod.
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
			return &ConflictError{What: fmt.Sprintf("pod %s/%s is endpoint %d (%s) already", t.Pod.Namespace, t.Pod.Name, o.ID, o.IP)}
		}
	}
	return nil
}
