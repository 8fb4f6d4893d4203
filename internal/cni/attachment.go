// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	"mustang/internal/datapath"
	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// attachment is one that is worked on. Its record is locked until close.
type attachment struct {
	plugin *Plugin
	config Config
	record *Record
	host   *nl.Namespace
	pod    *nl.Namespace // nil if it is gone

	mode    podlink.Mode
	network podlink.Network
	plugged bool             // the pod's device is there, without addresses
	mac     net.HardwareAddr // what the pod's device is to have, or nil
	dp      *datapath.Datapath
	onDisk  func() error // waits for the addresses to be on disk, or is nil
}

// open begins to work on an attachment. If create is not set and there is no
// record, the error matches fs.ErrNotExist.
func (p *Plugin) open(c Config, o Owner, create bool) (_ *attachment, err error) {
	a := &attachment{plugin: p, config: c}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.host, err = nl.CurrentNamespace(); err != nil {
		return nil, err
	}
	if a.record, err = p.records(c.Name).open(o, create); err != nil {
		return a, err
	}
	a.record.hook = p.passed
	return a, nil
}

func (a *attachment) close() {
	if a.dp != nil {
		_ = a.dp.Close()
	}
	if a.pod != nil {
		_ = a.pod.Close()
	}
	if a.record != nil {
		a.record.close()
	}
	if a.host != nil {
		_ = a.host.Close()
	}
}

// openDatapath opens the node's datapath, and makes it if it is not there yet.
func (a *attachment) openDatapath() (err error) {
	if a.dp == nil {
		a.dp, err = datapath.Open(a.plugin.datapathOptions())
	}
	return err
}

// findDatapath opens the node's datapath, if there is one.
func (a *attachment) findDatapath() (found bool, err error) {
	if a.dp == nil {
		a.dp, err = datapath.OpenExisting(a.plugin.datapathOptions())
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
	}
	return a.dp != nil, err
}

// useLink makes the attachment one of a link mode.
func (a *attachment) useLink(s shared) (err error) {
	if a.mode, err = podlink.Lookup(s.Link); err != nil {
		return err
	}
	a.network = podlink.Network{
		Host: a.host, Bridge: a.config.Bridge, OVSDB: a.config.OVSDB, MTU: s.MTU,
		Gateways: s.Gateways, Routers: s.Routers,
	}
	if a.mode.Needs() == podlink.NeedsUplink {
		a.network.Uplink = s.Parent
	}
	return nil
}

// podOf is the pod as podlink is told of it.
func (a *attachment) podOf(addresses []netip.Addr) podlink.Pod {
	return podlink.Pod{
		Namespace: a.pod, IfName: a.record.Owner.IfName, HostIfName: a.record.HostIfName, Addresses: addresses, MAC: a.mac,
		Routes: a.record.Routes, Secondary: a.record.Secondary, Plugged: a.plugged,
	}
}

// where names the attachment for messages.
func (a *attachment) where() string { return describe(a.record.Owner) }

// inUse is the error of an ADD whose attachment or device is there already.
func (a *attachment) inUse() error {
	return fmt.Errorf("%s is attached to %s already: DEL it first", a.where(), a.config)
}
