// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"mustang/internal/podlink"
)

// DHCPType is the plugin of containernetworking that asks a server on the pod's own
// network for addresses, by the pod's device.
const DHCPType = "dhcp"

// defaultDHCPDaemon is the socket of the plugin's daemon, if the configuration names no
// other.
const defaultDHCPDaemon = "/run/cni/dhcp.sock"

// asks reports whether the pod's device is there before the pod's addresses, which are
// asked for by it.
func (i IPAM) asks() bool { return i.Type == DHCPType }

// validateAsking judges a configuration whose addresses are asked for: the link has to
// reach the server, and the gateway that the server names is somebody else's.
func (c Config) validateAsking() error {
	if mode, err := podlink.Lookup(c.Link); err != nil || !plugs(mode) {
		return invalid("link: by %s no pod reaches a DHCP server, as ipam.type %s wants it (it does by: %s)",
			c.Link, DHCPType, strings.Join(linksThat(plugs), ", "))
	}
	if !slices.ContainsFunc(c.HostAddresses, netip.Addr.Is4) {
		return invalid("hostAddresses: missing: with ipam.type %s the gateway is another router, and the host needs an IPv4 address of its own among the pods",
			DHCPType)
	}
	return nil
}

// plugs reports whether pods can ask for addresses by a link mode.
func plugs(mode podlink.Mode) bool {
	_, ok := mode.(podlink.Plugger)
	return ok
}

// reachDaemon is an error if the daemon that asks for addresses does not run. Without it
// no address can be asked for, and none given back.
func (i IPAM) reachDaemon() error {
	if !i.asks() {
		return nil
	}
	conn, err := net.Dial("unix", i.Daemon)
	if err != nil {
		return fmt.Errorf("ipam.type %s: its daemon does not run: %w", DHCPType, err)
	}
	return conn.Close()
}

// plug makes the pod's device before the pod has addresses, where it asks for them.
func (a *attachment) plug() error {
	if !a.config.IPAM.asks() {
		return nil
	}
	if err := a.config.IPAM.reachDaemon(); err != nil {
		return err
	}
	var want shared
	if err := a.choose(&want, filepath.Join(a.plugin.runDir(a.config.Name), sharedName)); err != nil {
		return err
	}
	if err := a.useLink(want); err != nil {
		return err
	}
	mode, ok := a.mode.(podlink.Plugger)
	if !ok {
		return errors.ErrUnsupported // the configuration says otherwise
	}
	a.record.Link, a.record.Linked = a.mode.Name(), true
	if err := a.record.save(); err != nil {
		return err
	}
	if err := mode.Plug(a.network, a.podOf(nil)); err != nil {
		a.record.Linked = false // it has undone what it did
		return errors.Join(err, a.record.save())
	}
	a.plugged = true
	return nil
}
