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

	"mustang/internal/nl"
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
	checks := []func() error{func() error { return checkTold(r.IfName, device, told) }, a.checkDatapath}
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
