// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/cilium/ebpf"

	"mustang/internal/datapath/dirlock"
)

// adoptable is the layout whose maps are those of this build but for services. This build has more.
const adoptable = 7

// service7 is a row of services of layout 7.
type service7 struct {
	ID, Revision, Count, Flags, Total, Local, AffinityTimeout, Table, LocalFirst, LocalTable uint32

	Owner, Choice, OnRemove, Pad uint8
	HealthCheckPort, Ranges      uint16
	Tag                          uint32
}

// Upgradable reports whether Upgrade reads the layout that was found.
func (e *LayoutError) Upgradable() bool {
	return e.Found == filepath.Base(layout{number: upgradable}.version()) || e.Found == filepath.Base(layout{number: adoptable}.version())
}

// adopt takes the maps of layout 7 over, copies its services, and gives its links this build's programs, in place. Each link
// is in one of the two layouts at any time, so a call after a killed one does the rest.
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
	services, err := openServices7(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, services.Map.Close()) }()
	for name := range formats() {
		if name == tcMapServices {
			continue
		}
		if err := share(from, to, name); err != nil {
			return err
		}
	}
	o, err := openMaps(to, Sizes{Services: services.Size()}.byName())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	if err := o.OpenTables(); err != nil {
		return err
	}
	if err := errors.Join(o.Filter.keepSecret(), o.addSenders(), o.copyServices7(services)); err != nil {
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

// openServices7 opens the services of layout 7. The error is a *LayoutError if they have another format.
func openServices7(l layout) (*Table[ServiceKey, service7], error) {
	m, err := ebpf.LoadPinnedMap(l.mapPin(tcMapServices), nil)
	if err != nil {
		return nil, fmt.Errorf("open map: %w", err)
	}
	want := format{ebpf.Hash, unsafe.Sizeof(ServiceKey{}), unsafe.Sizeof(service7{})}
	if (format{m.Type(), uintptr(m.KeySize()), uintptr(m.ValueSize())}) != want {
		return nil, errors.Join(m.Close(), &LayoutError{Root: l.root, Found: "unknown", Want: fmt.Sprintf("v%d", LayoutVersion)})
	}
	return &Table[ServiceKey, service7]{m, tcMapServices}, nil
}

// copyServices7 copies services before any program reads the copies. The old programs go on with the old ones: the caller has
// the lock, so none changes.
func (o *Objects) copyServices7(from *Table[ServiceKey, service7]) error {
	for row, err := range from.All() {
		if err != nil {
			return err
		}
		v := row.Value
		if err := o.putService(row.Key, Service{
			Id: v.ID, Revision: v.Revision, Flags: v.Flags, Tag: v.Tag, Table: v.Table, Count: uint16(v.Count), Total: uint16(v.Total),
			AffinityTimeout: v.AffinityTimeout, Local: uint16(v.Local), LocalFirst: uint16(v.LocalFirst), LocalTable: v.LocalTable,
			Owner: v.Owner, Choice: v.Choice, OnRemove: v.OnRemove, HealthCheckPort: v.HealthCheckPort, Ranges: v.Ranges,
		}); err != nil {
			return err
		}
	}
	return nil
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
			if err := errors.Join(o.addSender(row.Key, &row.Value), o.Endpoints.Put(row.Key, row.Value)); err != nil {
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
