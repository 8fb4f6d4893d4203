// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/policy"
)

// attachment is the attachment of one request. Its record is locked until close.
type attachment struct {
	plugin  *Plugin
	request Request
	config  netconf.Config
	record  *record.Record
	host    *netns.Namespace
	pod     *netns.Namespace // nil if it no longer exists
	known   *policy.Pod      // of ADD: what network policies know of the pod; nil if none holds for it

	mode      podlink.Mode
	network   podlink.Network
	hasDevice bool             // the pod's device exists, without addresses
	mac       net.HardwareAddr // requested MAC address of the pod's device, or nil
	dp        *datapath.Datapath
}

// open opens the record. Without create, the error for a missing record matches fs.ErrNotExist.
func (p *Plugin) open(c netconf.Config, r Request, create bool) (_ *attachment, err error) {
	a := &attachment{plugin: p, request: r, config: c}
	if a.host, err = netns.Current(); err == nil {
		a.record, err = p.records().Open(c.Name, r.owner(), create)
	}
	if err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *attachment) close() {
	if a.dp != nil && a.plugin.Shared == nil {
		_ = a.dp.Close()
	}
	for _, ns := range []*netns.Namespace{a.pod, a.host} {
		if ns != nil {
			_ = ns.Close()
		}
	}
	if a.record != nil {
		a.record.Close()
	}
}

func (a *attachment) save() error {
	if err := a.record.Save(); err != nil {
		return err
	}
	return a.plugin.stepDone("record")
}

func (a *attachment) openDatapath(ctx context.Context) (err error) {
	if a.dp != nil {
		return nil
	}
	o := a.plugin.datapathOptions()
	o.Sizes.Connections = a.config.Connections
	open := datapath.Open
	if a.plugin.Shared != nil {
		open = a.plugin.Shared.Open
	}
	if a.dp, err = open(ctx, o); err != nil || o.Sizes.Connections == 0 {
		return err
	}
	warnings, err := a.dp.ConnectionTable().Warnings(o.Sizes.Connections)
	if len(warnings) > 0 {
		a.plugin.logf("note: %s", strings.Join(warnings, "; "))
	}
	return err
}

func (a *attachment) findDatapath() (err error) {
	if a.dp != nil {
		return nil
	}
	open := datapath.OpenExisting
	if a.plugin.Shared != nil {
		open = a.plugin.Shared.OpenExisting
	}
	a.dp, err = open(a.plugin.datapathOptions())
	return err
}

// ignoreNoDatapath ignores an error of datapath.OpenExisting if the node lacks a datapath of this version. Such a node
// holds no pods that this version can see.
func ignoreNoDatapath(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, objects.ErrNoBPFFS) || errors.As(err, new(*objects.LayoutError)) {
		return nil
	}
	return err
}

func (a *attachment) useNetwork(n record.Network) (err error) {
	if a.mode, err = podlink.Lookup(n.Link); err != nil {
		return err
	}
	a.record.Segment = n.Segment
	a.network = networkOf(n.Segment, a.host, a.mode)
	a.network.BigTCP, a.network.BigTCP6, a.network.DeleteDevice = n.BigTCP, n.BigTCP6, a.plugin.DeleteDevice
	return nil
}

func networkOf(s record.Segment, host *netns.Namespace, mode podlink.Mode) podlink.Network {
	network := podlink.Network{Host: host, Bridge: s.Bridge, OVSDB: s.OVSDB, MTU: s.MTU, Gateways: s.Gateways,
		Routers: s.Routers}
	if mode.Traits().Needs == podlink.NeedsUplink {
		network.Uplink = s.Parent
	}
	return network
}

func (a *attachment) podWith(addresses []netip.Addr) podlink.Pod {
	return podlink.Pod{
		Namespace: a.pod, IfName: a.record.Owner.IfName, HostIfName: a.record.HostIfName, Addresses: addresses, MAC: a.mac,
		Routes: a.record.Routes, Secondary: a.record.Secondary, Linked: a.hasDevice,
	}
}

func (a *attachment) String() string { return a.record.Owner.String() }

func (a *attachment) createDevice() error {
	if !a.config.IPAM.NeedsDevice() {
		return nil
	}
	if err := checkDaemon(a.config.IPAM); err != nil {
		return err
	}
	var network record.Network
	if err := a.resolve(&network); err != nil {
		return err
	}
	if !a.mode.Traits().DHCP {
		return fmt.Errorf("link %s: %w with ipam.type %s", a.mode.Name(), errors.ErrUnsupported, a.config.IPAM.Type)
	}
	pod := a.podWith(nil)
	pod.LinkOnly = true
	_, err := a.create(pod)
	a.hasDevice = err == nil
	return err
}

func (a *attachment) create(pod podlink.Pod) (link podlink.Attachment, err error) {
	a.record.Linked = true
	if err := a.save(); err != nil {
		return link, err
	}
	link, err = a.mode.Create(a.network, pod)
	if err != nil && !a.hasDevice {
		a.record.Linked = false // Create has undone its changes
		err = errors.Join(err, a.save())
	}
	return link, err
}

func (a *attachment) createLink(ctx context.Context, addresses []netconf.PodAddress) (podlink.Attachment, error) {
	routed := func(ip netconf.PodAddress) bool { return ip.Gateway.IsValid() }
	// no gateway in the pod network
	isolated := len(a.config.HostAddresses) > 0 && !slices.ContainsFunc(addresses, routed)
	a.record.Secondary = a.config.NoDefaultRoute || isolated && !slices.ContainsFunc(a.record.Routes,
		podlink.Route.IsDefault)
	pod := a.podWith(a.record.Addresses)
	// Invalid routes of an IPAM plugin are left out.
	usable, errs := pod.UsableRoutes(a.network, a.mode.Traits().Switched)
	if len(errs) > 0 && a.config.IPAM.BuiltIn() {
		return podlink.Attachment{}, netconf.Invalidf("ipam.%v", errs[0])
	}
	for _, err := range errs {
		a.plugin.logf("note: %s: left out of the result of IPAM plugin %s: %v", a.config, a.config.IPAM.Type, err)
	}
	a.record.Routes = usable
	if err := a.checkAddressesFree(); err != nil {
		return podlink.Attachment{}, err
	}
	link, err := a.create(a.podWith(a.record.Addresses))
	if errors.Is(err, fs.ErrExist) && !a.record.Secondary { // the pod has default routes by another network
		a.record.Secondary = true
		link, err = a.create(a.podWith(a.record.Addresses))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return link, err
	}
	if repair := a.ensureNetwork(ctx, addresses, true); repair != nil {
		return link, errors.Join(err, repair)
	}
	return a.create(a.podWith(a.record.Addresses))
}

func (a *attachment) deleteLink() error {
	if !a.record.Linked {
		return nil
	}
	mode, err := podlink.Lookup(a.record.Link)
	if err != nil {
		return fmt.Errorf("record of %s: %w", a, err)
	}
	network := podlink.Network{Host: a.host, Bridge: a.record.Bridge, OVSDB: a.record.OVSDB, Routers: a.record.Routers,
		DeleteDevice: a.plugin.DeleteDevice}
	return mode.Delete(network, a.podWith(a.record.Addresses))
}

func (a *attachment) result(link podlink.Attachment, addresses []netconf.PodAddress) *types100.Result {
	out := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, DNS: a.config.DNS}
	if link.HostIfName != "" {
		out.Interfaces = append(out.Interfaces,
			&types100.Interface{Name: link.HostIfName, Mac: macText(link.HostMAC), Mtu: a.network.MTU})
	}
	out.Interfaces = append(out.Interfaces, &types100.Interface{
		Name: a.record.Owner.IfName, Mac: macText(link.MAC), Mtu: a.network.MTU, Sandbox: a.request.Netns})
	inPod := len(out.Interfaces) - 1
	for i, ip := range addresses {
		if i < len(link.Prefixes) {
			ip.Prefix = link.Prefixes[i]
		}
		out.IPs = append(out.IPs, &types100.IPConfig{
			Interface: types100.Int(inPod), Address: ipNet(ip.Prefix), Gateway: ip.Gateway.AsSlice()})
	}
	for _, r := range link.Routes {
		out.Routes = append(out.Routes, &types.Route{
			Dst: ipNet(r.Dst), GW: r.Via.AsSlice(), MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority})
	}
	return out
}

// macText formats a MAC address. Devices without one get zeros, as in the kernel; podman 4 rejects an empty address.
func macText(mac net.HardwareAddr) string {
	if len(mac) == 0 {
		mac = make(net.HardwareAddr, 6)
	}
	return mac.String()
}

func (a *attachment) bandwidth(call func(podlink.Bandwidth, podlink.Mode, podlink.Network, podlink.Pod) error) error {
	limits := a.config.Runtime.Bandwidth
	if limits == (podlink.Bandwidth{}) || a.mode == nil {
		return nil
	}
	return call(limits, a.mode, a.network, a.podWith(a.record.Addresses))
}
