// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// chain adds services to the link that a plugin before this one has made, and
// passes its result on.
func (p *Plugin) chain(ctx context.Context, c Config, r Request) (result *types100.Result, err error) {
	if result, err = c.previous(); err != nil {
		return nil, err
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
	given, err := a.adopt()
	if err != nil {
		return nil, err
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"services", func() error { return a.serve() }},
		{"ports", func() error { return a.publish(given) }},
		{"result", a.finish},
	} {
		if err := p.done(ctx, step.name, step.do); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return result, nil
}

// previous is the result of the plugins before, or of ADD.
func (c Config) previous() (*types100.Result, error) {
	if c.PrevResult == nil {
		return nil, invalid("prevResult: missing")
	}
	plain, err := create.Create(c.CNIVersion, c.PrevResult)
	if err != nil {
		return nil, invalid("prevResult: %v", err)
	}
	result, err := types100.NewResultFromResult(plain)
	if err != nil {
		return nil, invalid("prevResult: %v", err)
	}
	return result, nil
}

// adopt takes over the pod's device, which must be a veth, with its addresses.
func (a *attachment) adopt() ([]address, error) {
	device, err := a.pod.Device(a.record.Owner.IfName)
	if err != nil {
		return nil, err
	}
	if device.Kind != "veth" {
		return nil, fmt.Errorf("chained: device %q in %s is a %s, and services are added to a veth only",
			device.Name, a.record.Netns, device.Kind)
	}
	var given []address
	for _, prefix := range device.Addrs {
		if prefix.Addr().IsGlobalUnicast() {
			given = append(given, address{Prefix: prefix})
		}
	}
	a.record.Addresses = addressesOf(given)
	if a.config.translatesSockets() {
		if err := a.translateSockets(); err != nil {
			return nil, err
		}
	}
	return given, a.record.save()
}

// ipsOf are the addresses of a result.
func ipsOf(result *types100.Result) []netip.Prefix {
	var out []netip.Prefix
	for _, ip := range result.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			bits, _ := ip.Address.Mask.Size()
			out = append(out, netip.PrefixFrom(addr.Unmap(), bits))
		}
	}
	return out
}
