// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/podlink"
)

// Add plugs a pod into the network, and returns what a runtime is to know of it.
// If it fails, it has undone all that it did.
func (p *Plugin) Add(ctx context.Context, r Request) (result *types100.Result, err error) {
	c, err := Parse(r.Config)
	if err != nil {
		return nil, err
	}
	if c.Chained {
		return p.chain(ctx, c, r)
	}
	a, err := p.begin(ctx, c, r)
	if err != nil {
		return nil, err
	}
	defer a.close()
	defer func() {
		if err != nil {
			err = errors.Join(err, a.detach(context.WithoutCancel(ctx)))
		}
	}()
	var given []address
	var made podlink.Attachment
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"plug", a.plug},
		{"addresses", func() (err error) { given, err = a.lease(ctx); return err }},
		{"network", func() error { return a.setUp(given, false) }},
		{"link", func() (err error) { made, err = a.link(given); return err }},
		{"bandwidth", a.limit},
		{"services", func() error { return a.serve() }},
		{"ports", func() error { return a.publish(given) }},
		{"disk", a.awaitDisk},
		{"result", func() error { result = a.result(made, given, r.Netns); return a.finish() }},
	} {
		if err := p.done(ctx, step.name, step.do); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return result, nil
}

// begin opens what ADD works on, and starts the record. An ADD that was killed is
// undone first.
func (p *Plugin) begin(ctx context.Context, c Config, r Request) (_ *attachment, err error) {
	if c.PrevResult != nil && !c.Chained {
		return nil, invalid("prevResult: %s makes the interface, and is not chained to another plugin", c)
	}
	a, err := p.open(c, r.owner(), true)
	if err != nil {
		return nil, err
	}
	fresh := false
	defer func() {
		if err != nil {
			if fresh {
				err = errors.Join(err, a.record.remove())
			}
			a.close()
		}
	}()
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	switch stale := a.record.Boot != boot; {
	case a.record.Done && !stale:
		return nil, a.inUse()
	case a.record.Boot != "":
		a.findPod(r.Netns)
		if err := a.detach(ctx); err != nil {
			return nil, fmt.Errorf("undo what an earlier ADD left: %w", err)
		}
		a.close()
		return p.begin(ctx, c, r)
	}
	fresh = true
	if a.pod, err = openPod(r.Netns, a.host); err != nil {
		return nil, err
	}
	if taken, err := a.pod.HasDevice(r.IfName); err != nil {
		return nil, err
	} else if taken && !c.Chained {
		return nil, fmt.Errorf("device %q is in network namespace %s already", r.IfName, r.Netns)
	}
	if c.Services != ServicesOff || len(c.Runtime.Ports) > 0 {
		if err := a.openDatapath(); err != nil {
			return nil, err
		}
	}
	a.mac = c.Runtime.MAC
	a.record.Boot, a.record.Netns = boot, r.Netns
	if a.record.Cookie, err = a.pod.Cookie(); err != nil {
		return nil, err
	}
	a.record.Bridge, a.record.OVSDB, a.record.IPAM = c.Bridge, c.OVSDB, c.IPAM.Type
	if !c.Chained {
		a.record.HostIfName = deviceName(c.Name, r.owner())
	}
	return a, a.record.save()
}

// link plugs the pod in. Where the network turns out to be incomplete, it is made
// again.
func (a *attachment) link(given []address) (podlink.Attachment, error) {
	a.record.Secondary = a.config.NoDefaultRoute
	pod := a.podOf(addressesOf(given))
	if err := a.judgeRoutes(pod); err != nil {
		return podlink.Attachment{}, err
	}
	a.record.Link, a.record.Routers, a.record.Linked = a.mode.Name(), a.network.Routers, true
	if err := a.record.save(); err != nil {
		return podlink.Attachment{}, err
	}
	made, err := a.mode.Create(a.network, pod)
	if errors.Is(err, fs.ErrExist) && !a.record.Secondary { // the pod has default routes, of another network
		a.record.Secondary = true
		if err := a.record.save(); err != nil {
			return made, err
		}
		pod = a.podOf(addressesOf(given))
		made, err = a.mode.Create(a.network, pod)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if again := a.setUp(given, true); again != nil {
			return made, errors.Join(err, again)
		}
		made, err = a.mode.Create(a.network, pod)
	}
	if err != nil && !a.plugged {
		a.record.Linked = false // it has undone what it did
		return made, errors.Join(err, a.record.save())
	}
	return made, err
}

// finish says that all is made.
func (a *attachment) finish() error {
	a.record.Done = true
	return a.record.save()
}

// address is one of a pod's.
type address struct {
	netip.Prefix            // with the length of its network
	Gateway      netip.Addr // of the network; invalid if there is none
}

func addressesOf(given []address) []netip.Addr {
	var out []netip.Addr
	for _, a := range given {
		out = append(out, a.Addr())
	}
	return out
}
