// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"

	"mustang/internal/datapath/objects"
	"mustang/internal/linkinfo"
	"mustang/internal/netns"
)

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
