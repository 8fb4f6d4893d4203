// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// Status returns nil if ADD can be expected to succeed. Otherwise the error lists the
// missing requirements. Status changes nothing.
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
	err = errors.Join(linkStatus(c, host), p.serviceStatus(c), p.diskStatus(c), p.addressStatus(ctx, c, r))
	if err != nil {
		return types.NewError(codeNotAvailable, oneLine(err), "")
	}
	return nil
}

// linkStatus probes the link mode and looks up its parent.
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

// serviceStatus checks that the datapath works, or can be created.
func (p *Plugin) serviceStatus(c netconf.Config) error {
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

// diskStatus checks that the directories of the network are writable.
func (p *Plugin) diskStatus(c netconf.Config) error {
	err := p.records().CheckWritable(c.Name)
	if !c.Chained && c.IPAM.BuiltIn() {
		err = errors.Join(err, record.CheckWritable(p.stateDir(c.Name)))
	}
	return err
}

// addressStatus checks that an address is free.
func (p *Plugin) addressStatus(ctx context.Context, c netconf.Config, r Request) error {
	switch {
	case c.Chained:
		return nil
	case !c.IPAM.BuiltIn():
		if err := checkDaemon(c.IPAM); err != nil {
			return err
		}
		_, err := runPlugin(ctx, c.IPAM.Type, "STATUS", r)
		return err
	}
	store, err := p.addresses(c.Name)
	if err != nil {
		return err
	}
	return store.Free(c.IPAM.Sets)
}
