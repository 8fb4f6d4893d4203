// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// enableSockets attaches the socket programs to the cgroup, and enables the sockets of the host's processes.
func (a *attachment) enableSockets(ctx context.Context) error {
	if err := a.openDatapath(ctx); err != nil {
		return err
	}
	if a.checkSockets() == nil {
		return nil
	}
	cgroup, err := a.plugin.cgroup()
	if err != nil {
		return err
	}
	if _, err := a.dp.Sockets().Attach(ctx, cgroup); err != nil {
		return err
	}
	_, err = a.dp.Sockets().Put(ctx, service.CNI, a.host, datapath.HostScope)
	return err
}

// checkSockets checks quickly that the socket programs are attached and the host enabled.
func (a *attachment) checkSockets() error {
	cgroup, err := a.plugin.cgroup()
	if err != nil {
		return err
	}
	return a.dp.Sockets().Check(service.CNI, a.host, cgroup)
}

// addServices adds the pod to the datapath, so that it reaches services, and policies hold for it.
func (a *attachment) addServices(ctx context.Context) error {
	if a.becomesEndpoint() {
		a.record.Endpoint = true
		if err := a.save(); err != nil {
			return err
		}
		endpoint, err := a.endpoint()
		if err != nil {
			return err
		}
		_, _, err = a.dp.Endpoints().Put(ctx, endpoint)
		if taken := (*datapath.ConflictError)(nil); errors.As(err, &taken) {
			a.record.Endpoint = false // another's that has an address is not this pod's to delete
		}
		return err // an endpoint's sockets are enabled with it
	}
	if err := a.addGuard(ctx); err != nil {
		return err
	}
	if !a.config.TranslatesSockets() {
		return nil
	}
	a.record.Admitted = true
	if err := a.save(); err != nil {
		return err
	}
	_, err := a.dp.Sockets().Put(ctx, service.CNI, a.pod, datapath.PodScope)
	return err
}

// becomesEndpoint reports whether the pod becomes an endpoint of the datapath.
func (a *attachment) becomesEndpoint() bool {
	return a.config.TranslatesPackets() || a.known != nil || a.guardsBothWays()
}

// checkAddressesFree refuses addresses that a pod has which is alive, and an endpoint or at the same bridge or parent.
// The datapath refuses those of endpoints too, but only once the pod's device is there and has told its neighbours that
// the addresses are at its MAC address: they would not reach the other pod for seconds.
func (a *attachment) checkAddressesFree(ctx context.Context) error {
	for _, ip := range a.record.Addresses {
		if !a.becomesEndpoint() {
			break
		}
		taken, err := a.dp.Endpoints().Get(ctx, ip)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if a.anotherHas(ip, func(r record.Record) bool { return r.Endpoint }) {
			return &datapath.ConflictError{What: fmt.Sprintf("address %s belongs to endpoint %d, which is in use", ip, taken.ID)}
		}
	}
	return a.checkAddressesBeside()
}

// checkAddressesBeside refuses addresses that a pod of another network at the same bridge or parent has: each network
// has its own store of addresses. Of two that are added at once it has to be called once the devices are there.
func (a *attachment) checkAddressesBeside() error {
	for _, name := range a.plugin.records().Networks() {
		store, err := a.plugin.addresses(name)
		if err != nil || name == a.config.Name {
			continue
		}
		beside := func(r record.Record) bool { return r.Network == name && r.Linked && r.Place == a.record.Place }
		for _, ip := range a.record.Addresses {
			if store.Has(ip) && a.anotherHas(ip, beside) {
				return fmt.Errorf("address %s belongs to a pod of network %q, which is at the same bridge or parent", ip, name)
			}
		}
	}
	return nil
}

// anotherHas reports whether another attachment has an address, and its pod is alive and has its device: a DEL that was
// killed may have left no more than the record.
func (a *attachment) anotherHas(ip netip.Addr, counts func(record.Record) bool) bool {
	records, _ := a.plugin.records().List("")
	return slices.ContainsFunc(records, func(r record.Record) bool {
		if a.record.Same(r) || !counts(r) || !slices.Contains(r.Addresses, ip) {
			return false
		}
		pod, err := netns.Open(r.Netns)
		if err != nil {
			return false
		}
		defer pod.Close()
		if cookie, err := pod.Cookie(); err != nil || cookie != r.Cookie {
			return false
		}
		_, err = rtnl.In(pod).Device(r.Owner.IfName)
		return err == nil
	})
}

// guardsBothWays reports whether the source guard needs a program on the way into the pod too: a pod can get past the
// one on its own device.
func (a *attachment) guardsBothWays() bool {
	return a.config.SourceGuard && a.config.Services != netconf.ServicesOff && a.mode != nil && !a.mode.Traits().HostSide
}

// addGuard attaches the source guard to the device of a pod that is no endpoint.
func (a *attachment) addGuard(ctx context.Context) error {
	if !a.config.SourceGuard {
		return nil
	}
	a.record.Guarded = true
	if err := a.save(); err != nil {
		return err
	}
	endpoint, err := a.endpoint()
	if err != nil {
		return err
	}
	_, err = a.dp.Guards().Put(ctx, endpoint)
	return err
}

// endpoint returns the pod as an endpoint of the datapath.
func (a *attachment) endpoint() (datapath.EndpointSpec, error) {
	at := podlink.Endpoint{Namespace: a.pod, IfName: a.record.Owner.IfName, Host: a.host}
	if !a.config.Chained {
		mode, err := podlink.Lookup(a.record.Link)
		if err != nil {
			return datapath.EndpointSpec{}, err
		}
		network := podlink.Network{Host: a.host, Bridge: a.record.Bridge, OVSDB: a.record.OVSDB}
		if at, err = network.Endpoint(mode, a.podWith(a.record.Addresses)); err != nil {
			return datapath.EndpointSpec{}, err
		}
	}
	return datapath.EndpointSpec{
		Owner:     service.CNI,
		Namespace: at.Namespace, IfName: at.IfName, Host: at.Host, HostIfName: at.HostIfName, Segment: at.Segment,
		Addresses: a.record.Addresses, Pod: a.known, Shaped: a.config.Runtime.Bandwidth.ToPod.Rate > 0,
		Allowed: a.config.AllowedAddresses, Unguarded: !a.config.SourceGuard, DHCP: a.config.IPAM.Type == netconf.DHCPType,
	}, nil
}

// checkServices checks that the datapath has the pod and its programs.
func (a *attachment) checkServices(ctx context.Context) error {
	if a.record.Guarded {
		endpoint, err := a.endpoint()
		if err == nil {
			err = a.dp.Guards().Check(endpoint)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case a.record.Admitted:
		_, err := a.dp.Sockets().Get(ctx, service.CNI, a.record.Cookie)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s: its sockets are not enabled in the datapath", a)
		}
		return err
	case a.record.Endpoint:
		endpoint, err := a.endpoint()
		if err != nil {
			return err
		}
		return a.dp.Endpoints().Check(ctx, endpoint)
	}
	return nil
}

// deleteServices removes the pod from the datapath. The pod's namespace may be gone. Its addresses may be another pod's
// if ADD failed for that, and what the datapath has of another pod stays: the cookie tells whose it is. Without one,
// the record was lost with the namespace, and what is left of the pod has no device: sweep finds it.
func (a *attachment) deleteServices(ctx context.Context) error {
	if a.record.Cookie == 0 || !a.record.Endpoint && !a.record.Admitted && !a.record.Guarded {
		return nil
	}
	if err := a.findDatapath(); isNoDatapath(err) {
		return nil
	} else if err != nil {
		return err
	}
	if a.record.Endpoint {
		if err := a.dp.Endpoints().DeletePod(ctx, a.record.Cookie, a.record.Addresses); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if a.record.Guarded {
		if err := a.dp.Guards().DeletePod(ctx, a.record.Cookie, a.record.Addresses); err != nil {
			return err
		}
	}
	if a.record.Admitted && !a.othersAdmitted() {
		if err := a.dp.Sockets().Delete(ctx, service.CNI, a.record.Cookie); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// othersAdmitted reports whether another attachment of the pod, in any network, needs the pod's sockets. Without the
// record of a finished ADD, the network namespace at the path may be another container's by now, as with paths of
// processes.
func (a *attachment) othersAdmitted() bool {
	container := a.record.Owner.ContainerID
	if !a.record.Done {
		container = ""
	}
	records, _ := a.plugin.records().List(container)
	return slices.ContainsFunc(records, func(r record.Record) bool {
		return !a.record.Same(r) && r.Cookie == a.record.Cookie && r.Admitted
	})
}
