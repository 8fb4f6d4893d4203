// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/datapath"
	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// Status is nil if ADD can be expected to work, and says what is missing if not.
// It changes nothing.
func (p *Plugin) Status(ctx context.Context, r Request) error {
	c, err := Parse(r.Config)
	if err != nil {
		return err
	}
	host, err := nl.CurrentNamespace()
	if err != nil {
		return err
	}
	defer host.Close()
	err = errors.Join(c.linkStatus(host), p.serviceStatus(c), p.diskStatus(c), p.addressStatus(ctx, c))
	if err != nil {
		return types.NewError(codeNotAvailable, oneLine(err), "")
	}
	return nil
}

// linkStatus tries the link mode, and looks for its parent.
func (c Config) linkStatus(host *nl.Namespace) error {
	if c.Chained {
		return nil
	}
	if c.Parent != "" {
		if _, err := host.Device(c.Parent); err != nil {
			return fmt.Errorf("parent: %w", err)
		}
	}
	if c.Link == LinkAuto {
		_, err := pickLink()
		return err
	}
	mode, err := podlink.Lookup(c.Link)
	if err != nil {
		return err
	}
	if mode.Needs() == podlink.NeedsOpenVSwitch {
		if _, err := os.Stat(c.OVSDB); err != nil {
			return fmt.Errorf("ovsdb: %w", err)
		}
	}
	return mode.Probe()
}

// serviceStatus reports what keeps services from working.
func (p *Plugin) serviceStatus(c Config) error {
	if c.Services == ServicesOff {
		return nil
	}
	if c.translatesSockets() {
		if err := datapath.ProbeSocket(); err != nil {
			return err
		}
	}
	d, err := datapath.OpenExisting(p.datapathOptions())
	if errors.Is(err, os.ErrNotExist) {
		return nil // the first ADD makes it
	}
	if err != nil {
		return err
	}
	return d.Close()
}

// addressStatus reports that no address is free.
func (p *Plugin) addressStatus(ctx context.Context, c Config) error {
	switch {
	case c.Chained:
		return nil
	case !c.IPAM.builtIn():
		if err := c.IPAM.reachDaemon(); err != nil {
			return err
		}
		return invoke.DelegateStatus(ctx, c.IPAM.Type, c.raw, nil)
	}
	store, err := p.addresses(c.Name)
	if err != nil {
		return err
	}
	return store.Free(c.IPAM.Sets)
}
