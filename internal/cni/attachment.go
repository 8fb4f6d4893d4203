// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"strings"

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

// open opens the record. Without create, the error matches fs.ErrNotExist if there is no record.
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

// openDatapath opens the datapath of the node, or creates it.
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

// findDatapath opens the datapath of the node, which must exist.
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
	var otherLayout *objects.LayoutError
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, objects.ErrNoBPFFS) || errors.As(err, &otherLayout) {
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
	a.network.BigTCP, a.network.DeleteDevice = n.BigTCP, a.plugin.DeleteDevice
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
