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
	"mustang/internal/netstat"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

func (a *attachment) addHostPorts(ctx context.Context, addresses []netip.Addr) error {
	if len(a.config.Runtime.Ports) == 0 {
		return nil
	}
	unlock, err := a.plugin.records().Lock(record.Ports) // so that two pods do not get the same port
	if err != nil {
		return err
	}
	defer unlock()
	host, err := hostAddrs(a.host)
	if err != nil {
		return err
	}
	var desired []service.Service
	for i, port := range a.config.Runtime.Ports {
		if port.HostIP.IsValid() && !slices.Contains(host, port.HostIP) {
			return netconf.Invalidf("runtimeConfig.portMappings[%d].hostIP: %v is not a routable host address", i, port.HostIP)
		}
		services := portServices(port, host, addresses)
		if len(services) == 0 {
			return fmt.Errorf("port %d: host and pod lack a common address of the family of %v", port.HostPort, port.HostIP)
		}
		if err := checkUnheard(a.host, services); err != nil {
			return err
		}
		desired = append(desired, services...)
	}
	if err := a.enableSockets(ctx); err != nil {
		return err
	}
	for _, s := range desired {
		if err := a.checkPortFree(ctx, s); err != nil {
			return err
		}
	}
	parent, err := a.parent()
	if err != nil {
		return err
	}
	if parent != "" {
		uplink, err := datapath.FindUplink(a.host, parent)
		if err != nil {
			return err
		}
		a.record.Uplink = uplinkName(uplink)
	}
	// The record comes before the services, but after the check that no other pod has them.
	a.record.Ports = desired
	if err := a.save(); err != nil {
		return err
	}
	if parent != "" {
		if _, err := a.dp.Uplinks().Put(ctx, a.host, parent); err != nil {
			return err
		}
	}
	for _, s := range desired {
		if _, _, err := a.dp.Services().Put(ctx, service.CNI, s); err != nil {
			return err
		}
	}
	return nil
}

func (a *attachment) checkPortFree(ctx context.Context, s service.Service) error {
	everywhere := netip.IPv6Unspecified()
	if s.Frontend.Addr().Is4() {
		everywhere = netip.IPv4Unspecified()
	}
	for _, addr := range []netip.Addr{s.Frontend.Addr(), everywhere} {
		s.Frontend = netip.AddrPortFrom(addr, s.Frontend.Port())
		taken, err := a.dp.Services().Get(ctx, s.Key())
		switch {
		case err == nil:
			return fmt.Errorf("host port %s is in use by %v", taken, taken.Backends)
		case errors.As(err, new(*datapath.ConflictError)): // with a service of all protocols
			return fmt.Errorf("host port %s is in use: %w", s, err)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return nil
}

func (a *attachment) ownsPort(ctx context.Context, port service.Service) (bool, error) {
	have, err := a.dp.Services().Get(ctx, port.Key())
	if errors.As(err, new(*datapath.ConflictError)) {
		return false, nil
	}
	return err == nil && have.SameBackends(port), ignoreMissing(err)
}

func (a *attachment) checkHostPorts(ctx context.Context) error {
	host, err := hostAddrs(a.host)
	if err != nil {
		return err
	}
	for _, port := range a.record.Ports {
		own, err := a.ownsPort(ctx, port)
		if err != nil {
			return err
		}
		if !own && slices.Contains(host, port.Frontend.Addr()) {
			return fmt.Errorf("host port %s does not lead to %v", port, port.Backends)
		}
	}
	parent, err := a.parent()
	if err != nil || parent == "" {
		return err
	}
	return a.dp.Uplinks().Check(a.host, parent)
}

// deleteHostPorts deletes the services of the host ports, and detaches the datapath from uplinks that no other
// attachment needs.
func (a *attachment) deleteHostPorts(ctx context.Context) error {
	if len(a.record.Ports) == 0 {
		return nil
	}
	unlock, err := a.plugin.records().Lock(record.Ports)
	if err != nil {
		return err
	}
	defer unlock()
	if err := a.findDatapath(); err != nil {
		return ignoreNoDatapath(err)
	}
	var errs []error
	for _, port := range a.record.Ports {
		own, err := a.ownsPort(ctx, port)
		if own {
			err = a.dp.Services().Delete(ctx, service.CNI, port.Key())
		}
		errs = append(errs, ignoreMissing(err))
	}
	return errors.Join(append(errs, a.deleteUplinks(ctx))...)
}

func (a *attachment) deleteUplinks(ctx context.Context) error {
	host, err := a.host.Cookie()
	if err != nil {
		return err
	}
	records, err := a.plugin.records().List("")
	if err != nil {
		return err
	}
	uplinks, err := a.dp.Uplinks().List(ctx)
	if err != nil {
		return err
	}
	for _, u := range uplinks {
		needed := slices.ContainsFunc(records, func(r record.Record) bool {
			return !a.record.Same(r) && len(r.Ports) > 0 && r.Uplink == uplinkName(u)
		})
		if u.Host != host || needed {
			continue
		}
		if err := ignoreMissing(a.dp.Uplinks().Delete(ctx, u)); err != nil {
			return err
		}
	}
	return a.dp.Uplinks().Sweep(ctx)
}

func uplinkName(u datapath.Uplink) string { return fmt.Sprintf("%d-%d", u.Host, u.IfIndex) }

func hostAddrs(host *netns.Namespace) (out []netip.Addr, err error) {
	all, err := rtnl.In(host).Every()
	for _, addr := range all {
		if !addr.IsLinkLocalUnicast() && !addr.IsMulticast() && !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	return out, err
}

func portServices(p netconf.Port, host, pod []netip.Addr) (out []service.Service) {
	if p.HostIP.IsValid() {
		host = []netip.Addr{p.HostIP}
	}
	for _, addr := range host {
		if i := slices.IndexFunc(pod, func(backend netip.Addr) bool { return backend.Is4() == addr.Is4() }); i >= 0 {
			out = append(out, service.Service{
				Frontend: netip.AddrPortFrom(addr, p.HostPort), Protocol: p.Protocol,
				Backends: service.Backends(netip.AddrPortFrom(pod[i], p.ContainerPort)),
			})
		}
	}
	return out
}

func (a *attachment) parent() (string, error) {
	if a.config.Parent != "" {
		return a.config.Parent, nil
	}
	device, err := rtnl.In(a.host).DefaultDevice()
	return device, ignoreMissing(err)
}

// checkUnheard returns an error if a process of the host receives at the host port. A socket at [::] counts for both
// families, unless it has IPV6_V6ONLY.
func checkUnheard(host *netns.Namespace, services []service.Service) error {
	port := services[0].Frontend.Port()
	sockets, err := netstat.Receivers(host, uint8(services[0].Protocol), port)
	if err != nil {
		return fmt.Errorf("host port %d: %w", port, err)
	}
	for _, socket := range sockets {
		at := socket.Addr
		for _, s := range services {
			addr := s.Frontend.Addr()
			if at == addr || at.IsUnspecified() && (at.Is6() && !socket.Only6 || at.Is4() == addr.Is4()) {
				return fmt.Errorf("host port %s is in use by a process of the host, at %s", s, netip.AddrPortFrom(at, port))
			}
		}
	}
	return nil
}
