// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"mustang/internal/datapath/dirlock"
)

// adoptable is the layout whose maps are all those of this build, which has more.
const adoptable = 7

// Upgradable reports whether Upgrade reads the layout that was found.
func (e *LayoutError) Upgradable() bool {
	return e.Found == filepath.Base(layout{number: upgradable}.version()) || e.Found == filepath.Base(layout{number: adoptable}.version())
}

// adopt takes the maps of layout 7 over, and gives its links this build's programs, in place. Each link is in one of the two
// layouts at any time, so a call after a killed one does the rest.
func (e *LayoutError) adopt(ctx context.Context, from layout) (err error) {
	links, err := dirlock.Take(ctx, from.links(), nil)
	if err != nil {
		return err
	}
	defer links.Unlock()
	held, err := dirlock.Take(ctx, e.Root, nil)
	if err != nil {
		return err
	}
	defer held.Unlock()
	to := layout{root: e.Root}
	if err := to.create(); err != nil {
		return err
	}
	for name := range formats() {
		if err := share(from, to, name); err != nil {
			return err
		}
	}
	o, err := openMaps(to, Sizes{}.byName())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	if err := o.OpenTables(); err != nil {
		return err
	}
	if err := o.addSenders(); err != nil {
		return err
	}
	if _, err := os.Stat(from.socketPrograms()); err == nil {
		if err := o.LoadSocketPrograms(); err != nil {
			return err
		}
	}
	if err := eachLink(from, func(k Link) error { return o.adoptLink(k, from.linkPin(k)) }); err != nil {
		return fmt.Errorf("upgrade %q: %w", e.Root, err)
	}
	return errors.Join(o.Filter.Change(), os.Rename(from.version(), from.version()+UnloadedSuffix), removeUnloaded(e.Root))
}

// addSenders makes the devices of endpoints senders that are none.
func (o *Objects) addSenders() error {
	known := make(map[uint32]bool)
	for row, err := range o.Senders.All() {
		if err != nil {
			return err
		}
		known[row.Value.Endpoint] = true
	}
	for row, err := range o.Endpoints.All() {
		if err != nil {
			return err
		}
		if !known[row.Value.Id] {
			if err := errors.Join(o.addSender(&row.Value), o.Endpoints.Put(row.Key, row.Value)); err != nil {
				return err
			}
		}
	}
	return nil
}

// adoptLink gives a link this build's program, and moves its pin here.
func (o *Objects) adoptLink(k Link, pin string) error {
	on, err := attachedTo(pin)
	if err != nil {
		return err
	}
	l, err := openLink(pin)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	if on != 0 { // else its device is gone: it stays until its owner deletes it
		p, err := o.Program(k.Hook)
		if err != nil {
			return err
		}
		defer func() { _ = p.Close() }()
		if err := l.Update(p); err != nil {
			return fmt.Errorf("replace program of %s: %w", k, err)
		}
	}
	return l.Pin(o.layout.linkPin(k))
}
