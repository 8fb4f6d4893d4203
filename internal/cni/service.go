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

func (a *attachment) checkSockets() error {
	cgroup, err := a.plugin.cgroup()
	if err != nil {
		return err
	}
	return a.dp.Sockets().Check(service.CNI, a.host, cgroup)
}

// becomesEndpoint reports whether the pod becomes an endpoint: its packets are translated, policies name it, or a
// source guard at its only device could be bypassed.
func (a *attachment) becomesEndpoint() bool {
	return a.config.TranslatesPackets() || a.known != nil || a.config.SourceGuard &&
		a.config.Services != netconf.ServicesOff && a.mode != nil && !a.mode.Traits().HostSide
}

func (a *attachment) addServices(ctx context.Context) error {
	a.record.Endpoint = a.becomesEndpoint()
	a.record.Guarded = !a.record.Endpoint && a.config.SourceGuard
	a.record.Admitted = !a.record.Endpoint && a.config.TranslatesSockets() // an endpoint's sockets are enabled with it
	if !a.inDatapath() {
		return nil
	}
	if err := a.save(); err != nil {
		return err
	}
	if a.record.Endpoint || a.record.Guarded {
		endpoint, err := a.endpoint()
		if err != nil {
			return err
		}
		if a.record.Guarded {
			_, err = a.dp.Guards().Put(ctx, endpoint)
		} else {
			_, _, err = a.dp.Endpoints().Put(ctx, endpoint)
		}
		if taken := (*datapath.ConflictError)(nil); errors.As(err, &taken) {
			a.record.Endpoint = false // the endpoint at an address is another pod's
		}
		if err != nil {
			return err
		}
	}
	if !a.record.Admitted {
		return nil
	}
	_, err := a.dp.Sockets().Put(ctx, service.CNI, a.pod, datapath.PodScope)
	return err
}

// checkAddressesFree refuses an address that a pod of another network has, if both are endpoints, or at one bridge or
// parent. It runs before the device announces the address, and again afterwards, for pods that are added at once.
func (a *attachment) checkAddressesFree() error {
	for _, name := range a.plugin.records().Networks() {
		store := a.plugin.addresses(name)
		for _, ip := range a.record.Addresses {
			if name != a.config.Name && store.Has(ip) && a.isTaken(ip, name) {
				return fmt.Errorf("address %s: a pod of network %q has it, as an endpoint, or at the same bridge or parent",
					ip, name)
			}
		}
	}
	return nil
}

// isTaken reports whether another network's pod has an address: a killed DEL may have left only the record.
func (a *attachment) isTaken(ip netip.Addr, network string) bool {
	records, _ := a.plugin.records().List("")
	return slices.ContainsFunc(records, func(r record.Record) bool {
		if r.Network != network || !slices.Contains(r.Addresses, ip) ||
			!(r.Endpoint && a.becomesEndpoint()) && !(r.Linked && place(r.Segment) == place(a.record.Segment)) {
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

func (a *attachment) endpoint() (datapath.EndpointSpec, error) {
	at := podlink.Endpoint{Namespace: a.pod, IfName: a.record.Owner.IfName, Host: a.host}
	if !a.config.Chained {
		mode, err := podlink.Lookup(a.record.Link)
		if err != nil {
			return datapath.EndpointSpec{}, err
		}
		if at, err = networkOf(a.record.Segment, a.host, mode).Endpoint(mode, a.podWith(a.record.Addresses)); err != nil {
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

func (a *attachment) checkServices(ctx context.Context) error {
	if a.record.Endpoint || a.record.Guarded {
		endpoint, err := a.endpoint()
		if err == nil && a.record.Guarded {
			err = a.dp.Guards().Check(endpoint)
		}
		if err == nil && a.record.Endpoint {
			err = a.dp.Endpoints().Check(ctx, endpoint)
		}
		if err != nil {
			return err
		}
	}
	if !a.record.Admitted {
		return nil
	}
	_, err := a.dp.Sockets().Get(ctx, service.CNI, a.record.Cookie)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s: its sockets are not enabled in the datapath", a)
	}
	return err
}

// deleteServices removes the pod from the datapath. An entry with another cookie is another pod's.
func (a *attachment) deleteServices(ctx context.Context) error {
	if a.record.Cookie == 0 || !a.inDatapath() {
		return nil
	}
	err := a.findDatapath()
	if err != nil {
		return ignoreNoDatapath(err)
	}
	if a.record.Endpoint {
		err = ignoreMissing(a.dp.Endpoints().DeletePod(ctx, a.record.Cookie, a.record.Addresses))
	}
	if err == nil && a.record.Guarded {
		err = ignoreMissing(a.dp.Guards().DeletePod(ctx, a.record.Cookie, a.record.Addresses))
	}
	if err == nil && a.record.Admitted && !a.othersAdmitted() {
		err = ignoreMissing(a.dp.Sockets().Delete(ctx, service.CNI, a.record.Cookie))
	}
	return err
}

func (a *attachment) inDatapath() bool {
	return a.record.Endpoint || a.record.Guarded || a.record.Admitted
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// othersAdmitted reports whether another attachment of the pod needs its sockets. Without a finished ADD, the path of
// the namespace may belong to another container now.
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
