// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
)

// AddEndpoint attaches the programs to a pod's device and lists the device's addresses, less link-local ones, as
// endpoints. The programs sit on the host's side of the link if it has one, as a veth has, and otherwise on the pod's own
// device, as with a macvlan. What is there already stays; an endpoint that has one of the addresses and whose device is
// gone is replaced. If a step fails, all is undone. Errors: a device or namespace that is missing matches
// os.ErrNotExist; *ConflictError if another pod that is alive has an address; *FullError.
func (d *Datapath) AddEndpoint(a Attach) ([]Endpoint, Change, error) {
	t, err := a.find()
	if err != nil {
		return nil, Unchanged, err
	}
	defer t.close()
	if err := t.addressed(a); err != nil {
		return nil, Unchanged, err
	}
	unlock, err := d.Lock()
	if err != nil {
		return nil, Unchanged, err
	}
	defer unlock()
	all, err := d.concerned(func(e Endpoint) bool { return t.is(e) || slices.Contains(t.addresses, e.IP) })
	if err != nil {
		return nil, Unchanged, err
	}
	if all, err = d.replaceStale(all, t); err != nil {
		return nil, Unchanged, err
	}
	if i := slices.IndexFunc(all, t.is); i >= 0 {
		return d.update(all, all[i].ID, t)
	}
	return d.add(t)
}

// add makes the endpoint of a device that has none.
func (d *Datapath) add(t *target) (_ []Endpoint, _ Change, err error) {
	ids, err := d.next(func(state *mustangState) { state.LastEndpoint++ })
	if err != nil {
		return nil, Unchanged, err
	}
	rows := t.endpoints(ids.LastEndpoint)
	defer func() {
		if err != nil {
			err = errors.Join(err, d.drop(rows, ids.LastEndpoint))
		}
	}()
	// What a process left that died while it deleted the address's last pod.
	if err := d.disconnect(t.addresses); err != nil {
		return nil, Unchanged, err
	}
	// Rows first: if we die in between, the next call finds the endpoint and attaches what is missing.
	if err := errors.Join(d.putEndpoints(rows), d.admit(t.netns)); err != nil {
		return nil, Unchanged, err
	}
	if err := t.on.Do(func() error {
		return d.attachNew(ids.LastEndpoint, t.side, t.ifindex)
	}); err != nil {
		return nil, Unchanged, err
	}
	return rows, Added, nil
}

// update makes the endpoint of a device what it should be.
func (d *Datapath) update(all []Endpoint, id uint32, t *target) ([]Endpoint, Change, error) {
	have := slices.DeleteFunc(slices.Clone(all), func(e Endpoint) bool { return e.ID != id })
	want := t.endpoints(id)
	change := Unchanged
	if !reflect.DeepEqual(have, want) {
		change = Updated
		// What stays as it is keeps what the programs have noted in it.
		fresh := slices.DeleteFunc(slices.Clone(want), func(w Endpoint) bool {
			return slices.ContainsFunc(have, func(e Endpoint) bool { return reflect.DeepEqual(e, w) })
		})
		if err := d.putEndpoints(fresh); err != nil {
			return nil, change, err
		}
		if err := d.retireEndpoints(have, want); err != nil {
			return nil, change, err
		}
	}
	if err := d.admit(t.netns); err != nil {
		return nil, change, err
	}
	err := t.on.Do(func() error {
		changed, err := d.attach(id, t.side, t.ifindex)
		if changed {
			change = Updated
		}
		return err
	})
	return want, change, err
}

// retireEndpoints removes the rows of addresses that are no more wanted, and all connections that know an old row.
func (d *Datapath) retireEndpoints(have, want []Endpoint) error {
	gone := make(map[netip.Addr]bool)
	for _, e := range have {
		i := slices.IndexFunc(want, func(w Endpoint) bool { return w.IP == e.IP })
		if i >= 0 && reflect.DeepEqual(e, want[i]) {
			continue
		}
		gone[e.IP] = true
		if i >= 0 {
			continue
		}
		if err := remove(d.maps.Endpoints, mustangMapEndpoints, encodeAddr(e.IP)); err != nil {
			return err
		}
	}
	// A program that has seen the old row still may be about to store a connection by it.
	waitForPrograms()
	return d.flushAddresses(gone)
}

// replaceStale removes the endpoints that have an address of t, but whose device is gone, and returns those that are
// left.
func (d *Datapath) replaceStale(all []Endpoint, t *target) ([]Endpoint, error) {
	stale := make(map[uint32]bool)
	for _, e := range all {
		if !slices.Contains(t.addresses, e.IP) || t.is(e) || stale[e.ID] {
			continue
		}
		if d.alive(e.ID) {
			return nil, &ConflictError{What: fmt.Sprintf("address %s belongs to endpoint %d, which is in use", e.IP, e.ID)}
		}
		stale[e.ID] = true
	}
	for id := range stale {
		if err := d.drop(all, id); err != nil {
			return nil, fmt.Errorf("replace endpoint %d: %w", id, err)
		}
	}
	return slices.DeleteFunc(all, func(e Endpoint) bool { return stale[e.ID] }), nil
}

func (d *Datapath) putEndpoints(rows []Endpoint) error {
	for _, e := range rows {
		key, value := encodeEndpoint(e)
		if err := put(d.maps.Endpoints, mustangMapEndpoints, key, value); err != nil {
			return err
		}
	}
	return nil
}
