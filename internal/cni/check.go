// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/datapath"
	"mustang/internal/lb"
	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// Check compares all that ADD has made, and what it told the runtime, with what is
// there. The error names what differs.
func (p *Plugin) Check(ctx context.Context, r Request) error {
	c, err := Parse(r.Config)
	if err != nil {
		return err
	}
	told, err := c.previous()
	if err != nil {
		return err
	}
	a, err := p.open(c, r.owner(), false)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not attached to %s: it has no record", describe(r.owner()), c)
	}
	if err != nil {
		return err
	}
	defer a.close()
	if !a.record.Done {
		return fmt.Errorf("%s is not attached to %s: ADD was not finished", a.where(), c)
	}
	if a.pod, err = openPod(r.Netns, a.host); err != nil {
		return err
	}
	device, err := a.pod.Device(r.IfName)
	if errors.Is(err, fs.ErrNotExist) { // and all that is on it
		return fmt.Errorf("device %q is missing in %s", r.IfName, r.Netns)
	}
	if err != nil {
		return err
	}
	a.mac = c.Runtime.MAC
	checks := []func() error{func() error { return checkTold(r.IfName, device, told) }, a.checkServices, a.checkPorts}
	if !c.Chained {
		checks = append(checks, func() error { return a.checkAddresses(ctx) }, a.checkLink, a.checkBandwidth)
	}
	var errs []error
	for _, check := range checks {
		errs = append(errs, check())
	}
	return errors.Join(errs...)
}

// checkTold compares the pod's device with what the runtime was told. The name may be
// an alternative one of the device.
func checkTold(name string, device nl.Device, told *types100.Result) error {
	i := slices.IndexFunc(told.Interfaces, func(i *types100.Interface) bool { return i.Sandbox != "" && i.Name == name })
	if i < 0 {
		return fmt.Errorf("prevResult: has no interface %q in a sandbox", name)
	}
	var errs []error
	if mac := told.Interfaces[i].Mac; mac != "" && mac != macText(device.MAC) {
		errs = append(errs, fmt.Errorf("device %q has MAC address %v, not %s", device.Name, device.MAC, mac))
	}
	for _, want := range ipsOf(told) {
		if !slices.Contains(device.Addrs, want) {
			errs = append(errs, fmt.Errorf("device %q lacks address %v", device.Name, want))
		}
	}
	return errors.Join(errs...)
}

// checkAddresses looks for the reservations.
func (a *attachment) checkAddresses(ctx context.Context) error {
	if !a.config.IPAM.builtIn() {
		return invoke.DelegateCheck(ctx, a.config.IPAM.Type, a.config.raw, nil)
	}
	leased, err := a.leased()
	if err != nil {
		return err
	}
	have := addressesOf(leased)
	for _, want := range a.record.Addresses {
		if !slices.Contains(have, want) {
			return fmt.Errorf("address %v is not reserved for %s", want, a.where())
		}
	}
	return nil
}

// checkLink has the link mode compare its devices and routes.
func (a *attachment) checkLink() error {
	s, ok := readShared(filepath.Join(a.plugin.runDir(a.config.Name), sharedName))
	if !ok {
		return fmt.Errorf("%s has no record of what its pods share", a.config)
	}
	if err := a.useLink(s); err != nil {
		return err
	}
	if err := a.mode.Check(a.network, a.podOf(a.record.Addresses)); err != nil {
		return err
	}
	if a.config.Masquerade {
		return masquerades(a.host, a.config.Name, s.Gateways)
	}
	return nil
}

// checkServices looks for the pod in the datapath, and for the programs on it.
func (a *attachment) checkServices() error {
	if !a.record.Endpoint && !a.record.Admitted {
		return nil
	}
	if err := a.needDatapath(); err != nil {
		return err
	}
	if a.record.Admitted {
		return a.checkSockets()
	}
	segment, err := a.segment()
	if err != nil {
		return err
	}
	return a.dp.CheckEndpoint(a.endpoint(segment))
}

// segment is the bridge of pods whose programs sit on their own devices.
func (a *attachment) segment() (string, error) {
	if a.config.Chained {
		return "", nil
	}
	mode, err := podlink.Lookup(a.record.Link)
	if err != nil {
		return "", err
	}
	return podlink.Segment(mode, podlink.Network{Host: a.host, Bridge: a.record.Bridge, OVSDB: a.record.OVSDB})
}

// checkSockets looks for the pod among those whose sockets are translated, and for
// the programs that do it.
func (a *attachment) checkSockets() error {
	pods, err := a.dp.SocketPods()
	if err != nil {
		return err
	}
	if !slices.Contains(pods, a.record.Cookie) {
		return fmt.Errorf("%s: its sockets are not translated to services: the datapath does not know the pod", a.where())
	}
	attached, err := a.dp.SocketCgroups()
	if err == nil && len(attached) == 0 {
		err = errors.New("sockets are not translated to services: the programs are attached to no control group")
	}
	return err
}

// needDatapath opens the node's datapath, which must be there.
func (a *attachment) needDatapath() error {
	found, err := a.findDatapath()
	if err == nil && !found {
		err = fmt.Errorf("%s: its datapath is gone from %s", a.where(), or(a.plugin.BPFRoot, datapath.DefaultRoot))
	}
	return err
}

// checkPorts looks for the services of the host's ports.
func (a *attachment) checkPorts() error {
	if len(a.record.Ports) == 0 {
		return nil
	}
	if err := a.needDatapath(); err != nil {
		return err
	}
	have, err := a.dp.Services()
	if err != nil {
		return err
	}
	for _, want := range a.record.Ports {
		if !slices.ContainsFunc(have, func(s lb.Service) bool {
			return s.Frontend == want.Frontend && s.Protocol == want.Protocol && s.SameBackends(want)
		}) {
			return fmt.Errorf("host port %s does not lead to %v", want, want.Backends)
		}
	}
	return nil
}
