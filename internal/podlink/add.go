// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// describeAdd says what the creation of a device failed at.
func describeAdd(err error, name, kind string, ns *nl.Namespace) error {
	return fmt.Errorf("create %s device %q in %q: %w", kind, name, ns.Name(), err)
}

// addInside creates a device inside a namespace, whose parent is a device of
// the host. If it fails there is none.
//
// Before Linux 6.15 the kernel refuses a name that a device of the host has, as
// if it were taken (in a pod "eth0" often is). The device then gets its name in a
// second step.
func addInside(host, inside side, device netlink.Link) (netlink.Link, error) {
	name := device.Attrs().Name
	device.Attrs().Namespace = netlink.NsFd(inside.ns.FD())
	err := host.LinkAdd(device)
	if errors.Is(err, unix.EEXIST) {
		if free := inside.mustBeFree(name); free == nil {
			return addRenamed(host, inside, device)
		}
	}
	if err != nil {
		return nil, describeAdd(err, name, device.Type(), inside.ns)
	}
	link, err := inside.link(name)
	if err != nil {
		return nil, errors.Join(err, inside.remove(name, device.Type()))
	}
	return link, nil
}

// addRenamed creates a device inside a namespace by another name, and renames it
// there.
func addRenamed(host, inside side, device netlink.Link) (_ netlink.Link, err error) {
	name := device.Attrs().Name
	passing := "mst" + rand.Text()[:8]
	device.Attrs().Name = passing
	if err := host.LinkAdd(device); err != nil {
		return nil, describeAdd(err, name, device.Type(), inside.ns)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, inside.remove(passing, device.Type()))
		}
	}()
	link, err := inside.link(passing)
	if err != nil {
		return nil, err
	}
	if err := inside.LinkSetName(link, name); err != nil {
		return nil, fmt.Errorf("name device %q in %q: %w", name, inside.ns.Name(), err)
	}
	passing = name
	return inside.link(name)
}
