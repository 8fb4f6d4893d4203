// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/ipam"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// step is a step of ADD. Its name prefixes its error.
type step struct {
	name string
	do   func() error
}

// Add attaches a pod to the network and returns the result for the runtime. On an error it undoes all its changes.
func (p *Plugin) Add(ctx context.Context, r Request) (result *types100.Result, err error) {
	c, err := netconf.Parse(r.Config)
	if err != nil {
		return nil, err
	}
	if c.PrevResult != nil && !c.Chained {
		return nil, netconf.Invalidf("prevResult: %s creates the interface; set chained to add services to another plugin's",
			c)
	}
	if err := p.await(ctx, c, r); err != nil {
		return nil, err
	}
	if c.Chained { // it adds services to the link of the previous plugin, and returns its result
		if result, err = c.PreviousResult(); err != nil {
			return nil, err
		}
	}
	a, err := p.begin(ctx, c, r)
	if err != nil {
		return nil, err
	}
	defer a.close()
	var addresses []netconf.PodAddress
	var link podlink.Attachment
	steps := []step{
		{"device", a.createDevice},
		{"addresses", func() (err error) { addresses, err = a.reserveAddresses(ctx); return err }},
		{"network", func() error { return a.ensureNetwork(ctx, addresses, false) }},
		{"link", func() (err error) { link, err = a.createLink(ctx, addresses); return err }},
		{"addresses of others", a.checkAddressesFree},
		{"bandwidth", func() error { return a.bandwidth(podlink.Bandwidth.Apply) }},
	}
	if c.Chained {
		steps = []step{{"device", func() error { return a.useDevice(ctx, result) }}}
	}
	steps = append(steps, step{"services", func() error { return a.addServices(ctx) }},
		step{"ports", func() error { return a.addHostPorts(ctx, a.record.Addresses) }},
		step{"result", func() error {
			if !c.Chained {
				result = a.result(link, addresses)
			}
			a.record.Done = true
			return a.save()
		}})
	for _, step := range steps {
		if err = ctx.Err(); err == nil {
			err = step.do()
		}
		if err == nil {
			err = p.stepDone(step.name)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", step.name, err), a.delete(context.WithoutCancel(ctx)))
		}
	}
	return result, nil
}

// begin opens the attachment and starts its record. It first deletes the remains of a killed ADD.
func (p *Plugin) begin(ctx context.Context, c netconf.Config, r Request) (_ *attachment, err error) {
	known, err := c.Pod(r.Args)
	if err != nil {
		return nil, err
	}
	boot := ipam.BootID()
	a, err := p.open(c, r, true)
	if err != nil {
		return nil, err
	}
	if a.record.Boot != "" {
		defer a.close()
		if a.record.Done && a.record.Boot == boot {
			return nil, fmt.Errorf("%s is already attached to %s: run DEL first", a, c)
		}
		a.findPod()
		if err := a.deleteAll(ctx); err != nil {
			return nil, fmt.Errorf("delete what an earlier ADD left: %w", err)
		}
		a.record.Close()
		return p.begin(ctx, c, r)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.record.Remove())
			a.close()
		}
	}()
	if a.pod, err = r.openPod(r.Netns, a.host); err != nil {
		return nil, err
	}
	if exists, err := rtnl.In(a.pod).HasDevice(r.IfName); err != nil {
		return nil, err
	} else if exists && !c.Chained {
		return nil, fmt.Errorf("device %q already exists in network namespace %s", r.IfName, r.Netns)
	}
	if c.NeedsDatapath() {
		if err := a.openDatapath(ctx); err != nil {
			return nil, err
		}
	}
	a.known, a.mac = known, c.Runtime.MAC
	a.record.Boot, a.record.Netns, a.record.IPAM = boot, r.Netns, c.IPAM.Type
	if namespace, name, _ := netconf.KubernetesPod(r.Args); name != "" {
		a.record.Pod = namespace + "/" + name
	}
	if a.record.Cookie, err = a.pod.Cookie(); err != nil {
		return nil, err
	}
	if !c.Chained {
		a.record.HostIfName = record.DeviceName(c.Name, r.owner())
	}
	return a, a.save()
}

func (a *attachment) useDevice(ctx context.Context, previous *types100.Result) error {
	name := a.record.Owner.IfName
	device, err := rtnl.In(a.pod).Device(name)
	if err != nil {
		return err
	}
	if mode, err := podlink.Lookup(device.Kind); err != nil || mode.Traits().Delivery != podlink.DeliverToPeer {
		return fmt.Errorf("chained: device %q in %s is a %s device, and a chained plugin supports veth only",
			device.Name, a.record.Netns, device.Kind)
	}
	for _, ip := range previous.IPs {
		prefix, inPod := prefixOf(ip.Address), ip.Interface == nil
		if !inPod && *ip.Interface >= 0 && *ip.Interface < len(previous.Interfaces) {
			at := previous.Interfaces[*ip.Interface]
			inPod = at.Sandbox != "" && at.Name == name
		}
		if prefix.IsValid() && prefix.Addr().IsGlobalUnicast() && inPod {
			a.record.Addresses = append(a.record.Addresses, prefix.Addr())
		}
	}
	if len(a.record.Addresses) == 0 {
		return netconf.Invalidf("prevResult: no address of %q", device.Name)
	}
	if a.config.TranslatesSockets() {
		if err := a.enableSockets(ctx); err != nil {
			return err
		}
	}
	return a.save()
}
