// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"mustang/internal/datapath"
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
	var wanted []lb.Service
	for _, port := range a.config.Runtime.Ports {
		services := port.services(host, given)
		if len(services) == 0 {
			return fmt.Errorf("port %d: neither the host nor the pod has an address of the family of %v", port.HostPort, port.HostIP)
		}
		wanted = append(wanted, services...)
	}
	if err := a.translateSockets(); err != nil {
		return err
	}
	unlock, err := a.plugin.lockPorts()
	if err != nil {
		return err
	}
	defer unlock()
	for _, service := range wanted {
		if err := a.free(service); err != nil {
			return err
		}
	}
	// Noted before they are made, but only when they are known to be no other pod's.
	a.record.Ports = wanted
	if err := a.record.save(); err != nil {
		return err
	}
	if err := a.openUplink(); err != nil {
		return err
	}
	for _, service := range wanted {
		if _, _, err := a.dp.PutService(service); err != nil {
			return err
		}
	}
	return nil
}

// lockPorts keeps the pods of all networks from changing the host's ports, so that
// two don't find one free at once, and none is published by an uplink that goes.
func (p *Plugin) lockPorts() (unlock func(), err error) {
	return lockDir(p.runRoot())
}

// free is an error if a service has the frontend.
func (a *attachment) free(wanted lb.Service) error {
	taken, err := a.dp.Service(wanted.Frontend, wanted.Protocol)
	var part *datapath.ConflictError // a service of all protocols
	switch {
	case err == nil:
		return fmt.Errorf("host port %s is taken, it leads to %v", taken, taken.Backends)
	case errors.As(err, &part):
		return fmt.Errorf("host port %s is taken: %w", wanted, err)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// leads reports whether a host's port leads to the pod, and not to another that has
// got it meanwhile.
func (a *attachment) leads(port lb.Service) (bool, error) {
	have, err := a.dp.Service(port.Frontend, port.Protocol)
	var part *datapath.ConflictError
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &part) {
		return false, nil
	}
	return err == nil && have.SameBackends(port), err
}

// unpublish ends what publish began for the pod.
func (a *attachment) unpublish() error {
	if len(a.record.Ports) == 0 {
		return nil
	}
	unlock, err := a.plugin.lockPorts()
	if err != nil {
		return err
	}
	defer unlock()
	found, err := a.findDatapath()
	if err != nil || !found {
		return errors.Join(err, a.unclaimUplinks())
	}
	var errs []error
	for _, port := range a.record.Ports {
		mine, err := a.leads(port)
		if mine {
			err = a.dp.DeleteService(port.Frontend, port.Protocol)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, a.closeUplinks())...)
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
