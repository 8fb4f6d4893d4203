// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"

	"mustang/internal/podlink"
)

// detach undoes what the record tells of, and removes the record. What can't be
// undone stays in the record, and does not keep the rest from being undone. The
// device goes before its programs, which it takes with it: to detach them from a
// device that is there waits for the kernel. The addresses are the last to go,
// since then another pod may get them; but those that were asked for by the device are
// given back by it, and a server keeps them from others for a while.
func (a *attachment) detach(ctx context.Context) error {
	var err error
	if a.record.IPAM == DHCPType {
		err = a.giveBack(ctx)
	}
	if err := errors.Join(err, a.unpublish(), a.unlink(), a.unserve()); err != nil {
		return err
	}
	_ = a.awaitDisk() // what it did is undone now
	if err := a.giveBack(ctx); err != nil {
		return err
	}
	return a.record.remove()
}

// giveBack gives the addresses back, unless there are none to give.
func (a *attachment) giveBack(ctx context.Context) error {
	if !a.record.Leased {
		return nil
	}
	if _, err := a.release(ctx); err != nil {
		return err
	}
	a.record.Leased = false
	return nil
}

// unlink removes the pod's link. What limits the pod goes with its devices.
func (a *attachment) unlink() error {
	if !a.record.Linked {
		return nil
	}
	mode, err := podlink.Lookup(a.record.Link)
	if err != nil {
		return fmt.Errorf("record of %s: %w", a.where(), err)
	}
	network := podlink.Network{Host: a.host, Bridge: a.record.Bridge, OVSDB: a.record.OVSDB, Routers: a.record.Routers}
	return mode.Delete(network, a.podOf(a.record.Addresses))
}
