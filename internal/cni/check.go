// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// Check compares the attachment with its record and with the result of ADD. The error lists the differences.
func (p *Plugin) Check(ctx context.Context, r Request) error {
	c, err := netconf.Parse(r.Config)
	if err != nil {
		return err
	}
	result, err := c.PreviousResult()
	if err != nil {
		return err
	}
	a, err := p.open(c, r, false)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not attached to %s: no record", r.owner(), c)
	}
	if err != nil {
		return err
	}
	defer a.close()
	if !a.record.Done {
		return fmt.Errorf("%s is not attached to %s: ADD did not finish", a, c)
	}
	if a.pod, err = r.openPod(r.Netns, a.host); err != nil {
		return err
	}
	device, err := rtnl.In(a.pod).Device(r.IfName)
	if errors.Is(err, fs.ErrNotExist) { // everything else is on it
		return fmt.Errorf("device %q is missing in %s", r.IfName, r.Netns)
	}
	if err != nil {
		return err
	}
	a.mac = c.Runtime.MAC
	err = errors.Join(checkResult(r.IfName, device, result), a.checkDatapath(ctx))
	if c.Chained {
		return err
	}
	return errors.Join(err, a.checkAddresses(ctx), a.checkLink(), a.bandwidth(podlink.Bandwidth.Check))
}

func checkResult(name string, device rtnl.Device, result *types100.Result) error {
	i := slices.IndexFunc(result.Interfaces, func(i *types100.Interface) bool { return i.Sandbox != "" && i.Name == name })
	if i < 0 {
		return fmt.Errorf("prevResult: no interface %q in a sandbox", name)
	}
	var errs []error
	if mac := result.Interfaces[i].Mac; mac != "" && mac != macText(device.MAC) {
		errs = append(errs, fmt.Errorf("device %q has MAC address %v, want %s", device.Name, device.MAC, mac))
	}
	for _, want := range prefixesOf(result) {
		if !slices.Contains(device.Addrs, want) {
			errs = append(errs, fmt.Errorf("device %q lacks address %v", device.Name, want))
		}
	}
	return errors.Join(errs...)
}

func (a *attachment) checkAddresses(ctx context.Context) error {
	if !a.config.IPAM.BuiltIn() {
		_, err := runPlugin(ctx, a.config.IPAM.Type, "CHECK", a.request)
		return err
	}
	leases, err := a.leasedAddresses()
	if err != nil {
		return err
	}
	have := addrsOf(leases)
	for _, want := range a.record.Addresses {
		if !slices.Contains(have, want) {
			return fmt.Errorf("address %v is not reserved for %s", want, a)
		}
	}
	return nil
}

// checkLink checks the devices, routes and masquerading rules. New pods may have another MTU and link mode.
func (a *attachment) checkLink() error {
	network, ok := a.plugin.records().Network(a.config.Name)
	if !ok {
		return fmt.Errorf("the record of the shared state of %s is missing", a.config)
	}
	network.Segment = a.record.Segment
	if onParent(network.Link) { // the kernel lowers the MTU of devices on a parent with the parent's
		if parent, err := rtnl.In(a.host).Device(network.Parent); err == nil {
			network.MTU = min(network.MTU, parent.MTU)
		}
	}
	if err := a.useNetwork(network); err != nil {
		return err
	}
	if err := a.mode.Check(a.network, a.podWith(a.record.Addresses)); err != nil || !a.config.Masquerade {
		return err
	}
	return checkMasquerade(a.host, a.config.Name, network.Gateways)
}

func (a *attachment) checkDatapath(ctx context.Context) error {
	ports := len(a.record.Ports) > 0
	if !a.inDatapath() && !ports {
		return nil
	}
	if err := a.findDatapath(); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: its datapath in %s no longer exists", a, cmp.Or(a.plugin.BPFRoot, objects.DefaultRoot))
	} else if err != nil {
		return err
	}
	errs := []error{a.checkServices(ctx)}
	if a.config.TranslatesSockets() || ports {
		errs = append(errs, a.checkSockets())
	}
	if ports {
		errs = append(errs, a.checkHostPorts(ctx))
	}
	return errors.Join(errs...)
}

// Status returns nil if ADD can be expected to succeed. Else the error lists what is missing. Status changes nothing.
func (p *Plugin) Status(ctx context.Context, r Request) error {
	c, err := netconf.Parse(r.Config)
	if err != nil {
		return err
	}
	host, err := netns.Current()
	if err != nil {
		return err
	}
	defer host.Close()
	err = errors.Join(linkStatus(c, host), p.datapathStatus(c), p.records().CheckWritable(c.Name),
		p.addressStatus(ctx, c, r))
	if err != nil {
		return types.NewError(codeNotAvailable, oneLine(err), "")
	}
	return nil
}

func linkStatus(c netconf.Config, host *netns.Namespace) error {
	if c.Chained {
		return nil
	}
	if c.Parent != "" {
		if _, err := rtnl.In(host).Device(c.Parent); err != nil {
			return fmt.Errorf("parent: %w", err)
		}
	}
	if c.Link == netconf.LinkAuto {
		_, err := netconf.SelectLink()
		return err
	}
	mode, err := podlink.Lookup(c.Link)
	if err != nil {
		return err
	}
	if mode.Traits().Needs == podlink.NeedsOpenVSwitch {
		if _, err := os.Stat(c.OVSDB); err != nil {
			return fmt.Errorf("ovsdb: %w", err)
		}
	}
	return mode.Probe()
}

func (p *Plugin) datapathStatus(c netconf.Config) error {
	if !c.NeedsDatapath() {
		return nil
	}
	if c.TranslatesSockets() {
		if err := objects.ProbeSocket(); err != nil {
			return err
		}
	}
	d, err := datapath.OpenExisting(p.datapathOptions())
	if errors.Is(err, os.ErrNotExist) {
		return nil // the first ADD creates it
	}
	if err != nil {
		return err
	}
	return d.Close()
}

func (p *Plugin) addressStatus(ctx context.Context, c netconf.Config, r Request) error {
	if c.Chained {
		return nil
	}
	if !c.IPAM.BuiltIn() {
		if err := checkDaemon(c.IPAM); err != nil {
			return err
		}
		_, err := runPlugin(ctx, c.IPAM.Type, "STATUS", r)
		return err
	}
	return errors.Join(record.CheckWritable(p.stateDir(c.Name)), p.addresses(c.Name).Free(c.IPAM.Sets))
}
