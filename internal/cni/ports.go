// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"mustang/internal/lb"
)

// publish has the host's ports lead to the pod: services on the host's own
// addresses, for what comes in by the parent and for the host's own processes.
func (a *attachment) publish(given []address) error {
	if len(a.config.Runtime.Ports) == 0 {
		return nil
	}
	host, err := a.hostAddresses()
	if err != nil {
		return err
	}
	for _, port := range a.config.Runtime.Ports {
		services := port.services(host, given)
		if len(services) == 0 {
			return fmt.Errorf("port %d: neither the host nor the pod has an address of the family of %v", port.HostPort, port.HostIP)
		}
		a.record.Ports = append(a.record.Ports, services...)
	}
	wanted := a.record.Ports
	a.record.Ports = nil
	if err := a.openHost(); err != nil {
		return err
	}
	// Of all networks, so that two pods don't find a port free at once.
	unlock, err := lockDir(or(a.plugin.RunDir, DefaultRunDir))
	if err != nil {
		return err
	}
	defer unlock()
	for _, service := range wanted {
		// Noted before it is made, but only if it is no other pod's.
		if err := a.free(service); err != nil {
			return err
		}
		a.record.Ports = append(a.record.Ports, service)
		if err := a.record.save(); err != nil {
			return err
		}
		if _, _, err := a.dp.PutService(service); err != nil {
			return err
		}
	}
	return nil
}

// free is an error if a service has the frontend.
func (a *attachment) free(wanted lb.Service) error {
	services, err := a.dp.Services()
	if err != nil {
		return err
	}
	for _, s := range services {
		if s.Frontend == wanted.Frontend && (s.Protocol == wanted.Protocol || s.Protocol == lb.Any) {
			return fmt.Errorf("host port %s is taken, it leads to %v", s, s.Backends)
		}
	}
	return nil
}

// openHost has the programs see what comes in by the parent, and what the host's
// own processes send.
func (a *attachment) openHost() error {
	if err := a.translateSockets(); err != nil {
		return err
	}
	parent, err := a.parent()
	if err != nil || parent == "" {
		return err
	}
	_, err = a.dp.AddUplink(a.host, parent)
	return err
}

// parent is the host's device to the outside, empty if it has none.
func (a *attachment) parent() (string, error) {
	if a.config.Parent != "" {
		return a.config.Parent, nil
	}
	device, err := a.host.DefaultDevice()
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return device, err
}

// unpublish ends what publish began for the pod.
func (a *attachment) unpublish() error {
	if len(a.record.Ports) == 0 {
		return nil
	}
	found, err := a.findDatapath()
	if err != nil || !found {
		return err
	}
	have, err := a.dp.Services()
	if err != nil {
		return err
	}
	var errs []error
	for _, port := range a.record.Ports {
		// A port that another pod has got meanwhile is that one's.
		mine := func(s lb.Service) bool {
			return s.Frontend == port.Frontend && s.Protocol == port.Protocol && s.SameBackends(port)
		}
		if !slices.ContainsFunc(have, mine) {
			continue
		}
		if err := a.dp.DeleteService(port.Frontend, port.Protocol); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// hostAddresses are those by which the host is reached, loopback included.
func (a *attachment) hostAddresses() ([]netip.Addr, error) {
	devices, err := a.host.Devices()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, device := range devices {
		for _, prefix := range device.Addrs {
			if addr := prefix.Addr(); !addr.IsLinkLocalUnicast() && !addr.IsMulticast() && !slices.Contains(out, addr) {
				out = append(out, addr)
			}
		}
	}
	return out, nil
}

// services are what leads a host's port to the pod, one for each address of the
// host that it is on.
func (p Port) services(host []netip.Addr, pod []address) []lb.Service {
	if p.HostIP.IsValid() {
		host = []netip.Addr{p.HostIP}
	}
	var out []lb.Service
	for _, addr := range host {
		for _, backend := range pod {
			if backend.Addr().Is4() != addr.Is4() {
				continue
			}
			out = append(out, lb.Service{
				Frontend: netip.AddrPortFrom(addr, p.HostPort), Protocol: p.Protocol,
				Backends: []netip.AddrPort{netip.AddrPortFrom(backend.Addr(), p.ContainerPort)},
			})
			break
		}
	}
	return out
}
