// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"mustang/internal/datapath/objects"
	"mustang/internal/linkinfo"
	"mustang/internal/netns"
)

// requireHost makes the network namespace with the cookie the host of all endpoints and uplinks. The programs deliver
// by the indexes of the host's devices, which stand for other devices on another host. If an endpoint or uplink of
// another host is alive, the error is a *ConflictError with what. Remains of a host that is gone are deleted. The
// caller has the lock of the links.
func requireHost(ctx context.Context, o *objects.Objects, host uint64, what string) error {
	state, err := o.NodeState.IDs()
	if err != nil || state.Host == host {
		return err
	}
	// If the maps lack a host, this one becomes it.
	if state.Host != 0 {
		if err := clearHost(ctx, o, state.Host, what); err != nil {
			return err
		}
	}
	return o.WithLock(ctx, func() error {
		state, err := o.NodeState.IDs()
		if err != nil {
			return err
		}
		state.Host = host
		return o.NodeState.PutIDs(state)
	})
}

// clearHost deletes the endpoints and uplinks of a host. It fails if one of them still has a device.
func clearHost(ctx context.Context, o *objects.Objects, host uint64, what string) error {
	endpoints := Endpoints{o}
	all, err := endpoints.list()
	if err != nil {
		return err
	}
	uplinks, err := Uplinks{o}.attached(o.Detach)
	if err != nil {
		return err
	}
	alive := len(uplinks) > 0
	var ids []uint32
	for _, e := range all {
		ids = append(ids, e.ID)
		alive = alive || endpoints.alive(e.ID)
	}
	if !alive {
		_, err := Remotes{o}.Apply(ctx, nil)
		return cmp.Or(err, endpoints.remove(ctx, ids...))
	}
	name := fmt.Sprintf("network namespace with cookie %d", host)
	_ = onHost(host, func(ns *netns.Namespace) error {
		if ns != nil {
			name = fmt.Sprintf("network namespace %q", ns.Name())
		}
		return nil
	})
	return &ConflictError{What: fmt.Sprintf(
		"%s: %q has endpoints or uplinks of another host, %s: each host needs a directory of its own", what, o.Root(), name)}
}

func isElsewhere(o *objects.Objects, host uint64) (bool, error) {
	state, err := o.NodeState.IDs()
	return state.Host != 0 && state.Host != host, err
}

// Host returns the cookie of the network namespace that all endpoints and uplinks are of; 0 if there is none yet.
func (d *Datapath) Host() (uint64, error) {
	state, err := d.objects.NodeState.IDs()
	return state.Host, err
}

// OnHost calls fn with the network namespace of all endpoints and uplinks, or nil if it lacks a name and a process.
// Without a host it does nothing.
func (d *Datapath) OnHost(fn func(cookie uint64, host *netns.Namespace) error) error {
	cookie, err := d.Host()
	if err != nil || cookie == 0 {
		return err
	}
	return onHost(cookie, func(host *netns.Namespace) error { return fn(cookie, host) })
}

// hostCookie returns the cookie of the host: the host of endpoints and uplinks or, without them, the lowest cookie
// among hosts whose sockets are translated. 0: none.
func hostCookie(o *objects.Objects) (uint64, error) {
	state, err := o.NodeState.IDs()
	if err != nil || state.Host != 0 {
		return state.Host, err
	}
	host := uint64(0)
	for row, err := range o.Namespaces.All() {
		if err != nil {
			return 0, err
		}
		if row.Value.Flags&objects.NamespaceHost != 0 && (host == 0 || row.Key < host) {
			host = row.Key
		}
	}
	return host, nil
}

// onHost calls fn with the network namespace that has the cookie. The thread's own namespace is tried first. If the
// namespace cannot be found, fn gets nil.
func onHost(cookie uint64, fn func(*netns.Namespace) error) error {
	own, err := netns.Current()
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	switch c, err := own.Cookie(); {
	case err != nil:
		return err
	case c == cookie:
		return fn(own)
	case cookie == 0:
		return fn(nil)
	}
	return withNamespaces(func(by map[uint64]*netns.Namespace) error { return fn(by[cookie]) })
}

// withNamespaces calls fn with the network namespaces that have a name or a process, by their cookies; the calling
// thread's too.
func withNamespaces(fn func(by map[uint64]*netns.Namespace) error) (err error) {
	snapshot, err := linkinfo.Take()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	own, err := netns.Current()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	by := make(map[uint64]*netns.Namespace)
	for _, ns := range append([]*netns.Namespace{own}, snapshot.Namespaces()...) {
		cookie, err := ns.Cookie()
		if err != nil {
			return err
		}
		by[cookie] = ns
	}
	return fn(by)
}
