// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"mustang/internal/datapath/dirlock"
)

// migration is the way from one layout to this build's.
type migration struct {
	from layout
	old  *tables6
	o    *Objects
	// cookies are those of all network namespaces, within calls fn in one of them.
	cookies []uint64
	within  func(cookie uint64, fn func() error) error
	host    uint64 // cookie of the network namespace of the host; 0: not looked for yet
	beside  map[AttachPoint]*ebpf.Collection
}

// Upgrade brings maps, programs and links to this build's layout while packets flow, and keeps connections. within
// calls fn in the network namespace with a cookie. The devices are in those with the cookies, of which the most likely host is
// the first. If it fails before the new programs open connections, nothing has changed; a call after one that was
// killed completes it. The error is e for layouts that it cannot read.
//
// The new programs run in front of the old ones and leave them what they have no connection for. They get the connections
// first and the services then, so new connections are theirs from one moment on. In the end they replace the old ones.
func (e *LayoutError) Upgrade(ctx context.Context, cookies []uint64, within func(cookie uint64, fn func() error) error) (err error) {
	if from := (layout{root: e.Root, number: adoptable}); e.Found == filepath.Base(from.version()) {
		return e.adopt(ctx, from)
	}
	m := &migration{from: layout{root: e.Root, number: upgradable}, cookies: cookies, within: within, beside: make(map[AttachPoint]*ebpf.Collection)}
	if e.Found != filepath.Base(m.from.version()) {
		return e
	}
	links, err := dirlock.Take(ctx, m.from.links(), nil)
	if err != nil {
		return err
	}
	defer links.Unlock()
	rows, err := dirlock.Take(ctx, e.Root, nil)
	if err != nil {
		return err
	}
	defer rows.Unlock()
	if m.old, err = openTables6(m.from); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	if err := m.prepare(); err != nil {
		return errors.Join(err, m.revert())
	}
	return m.change()
}

// close frees what this process holds.
func (m *migration) close() error {
	for _, c := range m.beside {
		c.Close()
	}
	err := m.old.close()
	if m.o != nil {
		err = errors.Join(err, m.o.Close())
	}
	return err
}

// prepare makes the new maps with all rows but services and connections, and attaches the new programs.
func (m *migration) prepare() error {
	to := layout{root: m.from.root}
	if err := to.create(); err != nil {
		return err
	}
	for _, name := range []string{socklbMapNamespaces, socklbMapSockets, socklbMapSkRevnat} {
		if err := share(m.from, to, name); err != nil {
			return err
		}
	}
	var err error
	if m.o, err = openMaps(to, m.old.sizes().byName()); err == nil {
		err = m.o.OpenTables()
	}
	if err == nil {
		err = m.copyTables()
	}
	if err != nil {
		return err
	}
	if err := eachLink(m.from, func(k Link) error {
		if k.Hook.Point == AttachCgroup {
			return nil
		}
		return m.attachBeside(k)
	}); err != nil || m.host == 0 {
		return err
	}
	state, _, err := m.o.State.Get(0)
	state.Host = m.host
	return errors.Join(err, m.o.State.Put(0, state))
}

// revert removes the new layout, unless its programs have services.
func (m *migration) revert() error {
	if m.o != nil && m.o.Services != nil {
		for _, err := range m.o.Services.All() {
			return err // a killed call has given them some: they stay, for the next call
		}
	}
	to := layout{root: m.from.root}
	return errors.Join(detachFrom(to.links()), os.RemoveAll(to.version()))
}

// share pins a map whose format has not changed in the new layout too.
func share(from, to layout, name string) error {
	if _, err := os.Lstat(to.mapPin(name)); err == nil {
		return nil
	}
	old, err := ebpf.LoadPinnedMap(from.mapPin(name), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open map: %w", err)
	}
	defer func() { _ = old.Close() }()
	again, err := old.Clone() // which Pin does not move
	if err == nil {
		err = errors.Join(again.Pin(to.mapPin(name)), again.Close())
	}
	if err != nil {
		return fmt.Errorf("pin map %q: %w", name, err)
	}
	return nil
}

// eachLink calls fn with the links of a layout.
func eachLink(from layout, fn func(Link) error) error {
	entries, err := os.ReadDir(from.links())
	if err != nil {
		return fmt.Errorf("read links: %w", err)
	}
	for _, entry := range entries {
		if k, ok := (Link{}).Parse(entry.Name()); ok {
			if err := fn(k); err != nil {
				return err
			}
		}
	}
	return nil
}

// attachBeside attaches a new program in front of the old one of a link, unless the device is gone.
func (m *migration) attachBeside(k Link) error {
	if on, err := m.o.Attached(k); err == nil && on != 0 {
		return nil
	}
	place := k
	if k.Hook.InPeer() {
		place.Hook.Program = tcProgToPod // at the device itself
	}
	on, err := attachedTo(m.from.linkPin(place))
	if err != nil || on == 0 {
		return err
	}
	p, err := m.besideProgram(k.Hook)
	if err != nil {
		return err
	}
	old, err := openLink(m.from.linkPin(k))
	if err != nil {
		return err
	}
	defer func() { _ = old.Close() }()
	cookie, err := m.namespace(k, int(on), old)
	if err != nil {
		return err
	}
	if err := m.o.Detach(k); err != nil {
		return err
	}
	return m.within(cookie, func() error { return m.o.attachProgram(k, p, int(on), link.BeforeLink(old)) })
}

// namespace returns the cookie of the network namespace in which a device has its index, and an old program by the link.
func (m *migration) namespace(k Link, on int, old link.Link) (uint64, error) {
	switch k.Hook.Point {
	case AttachUplink:
		return k.ID, nil
	case AttachPod:
		return m.old.podNamespace(k)
	}
	if m.host != 0 {
		return m.host, nil
	}
	// Layout 6 does not tell which namespace is the host.
	info, err := old.Info()
	if err != nil {
		return 0, fmt.Errorf("read link %s: %w", k, err)
	}
	for _, cookie := range m.cookies {
		err := m.within(cookie, func() error {
			found, err := link.QueryPrograms(link.QueryOptions{Target: on, Attach: k.Hook.AttachType()})
			if err == nil && slices.ContainsFunc(found.Programs, func(p link.AttachedProgram) bool {
				id, ok := p.LinkID()
				return ok && id == info.ID
			}) {
				m.host = cookie
			}
			return nil // it has no such device
		})
		if m.host != 0 || err != nil {
			return m.host, err
		}
	}
	return 0, fmt.Errorf("no name or process leads to the network namespace with the device of link %s", k)
}

// besideProgram returns a program that leaves to others what it has no connection for. It is not pinned.
func (m *migration) besideProgram(h Hook) (*ebpf.Program, error) {
	if m.beside[h.Point] == nil {
		config := h.Point.config()
		config.Beside = 1
		c, err := m.o.newCollection(h.Point, config)
		if err != nil {
			return nil, err
		}
		m.beside[h.Point] = c
	}
	return m.beside[h.Point].Programs[h.Program], nil
}

// change makes the new programs serve what the old ones did, and removes these.
func (m *migration) change() error {
	for _, step := range []func() error{
		m.copyConnections, m.o.Filter.Change, // before the services: the programs would choose backends anew
		m.copyServices, m.o.Filter.Change,
		m.copyConnections, m.o.Filter.Change, // those opened meanwhile
		m.changeSockets,
		func() error { return m.o.updateLinks(false) },
		func() error { return detachFrom(m.from.links()) },
		func() error { return os.Rename(m.from.version(), m.from.version()+UnloadedSuffix) },
		func() error { return removeUnloaded(m.from.root) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("upgrade %q: %w", m.from.root, err)
		}
	}
	return nil
}

// changeSockets gives the links of control groups the new programs. Sockets keep what they have: the maps are the same.
func (m *migration) changeSockets() error {
	if _, err := os.Stat(m.from.socketPrograms()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := m.o.LoadSocketPrograms(); err != nil {
		return err
	}
	return eachLink(m.from, func(k Link) error {
		if k.Hook.Point != AttachCgroup {
			return nil
		}
		l, err := openLink(m.from.linkPin(k))
		if err != nil {
			return err
		}
		defer func() { _ = l.Close() }()
		p, err := m.o.Program(k.Hook)
		if err != nil {
			return err
		}
		defer func() { _ = p.Close() }()
		if on, err := attachedTo(m.from.linkPin(k)); err != nil || on == 0 {
			return err // the control group is gone
		}
		if err := l.Update(p); err != nil {
			return fmt.Errorf("replace program of %s: %w", k, err)
		}
		return l.Pin(m.o.layout.linkPin(k)) // moves it
	})
}
