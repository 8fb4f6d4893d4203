// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/linkinfo"
	"mustang/internal/netns"
)

// Host is a network namespace whose sockets are translated although it has no endpoint.
type Host struct {
	// Cookie identifies the namespace in the maps; it is not used again.
	Cookie uint64
	// Name is the namespace's, or the path of a process's; empty if it has neither, or is gone.
	Name string
}

// AddHost enables translation in the network namespace of a host. Services with a loopback frontend are served there, and
// only there. The error is an *objects.FullError if there is no room.
func (s Sockets) AddHost(ctx context.Context, ns *netns.Namespace) (Change, error) {
	return s.add(ctx, ns, objects.NamespaceHost)
}

// AddPod enables translation in the network namespace of a pod that is not an endpoint: its packets pass no program.
// Services with a loopback frontend are not served there: that address is the pod's own. The error is an *objects.FullError
// if there is no room.
func (s Sockets) AddPod(ctx context.Context, ns *netns.Namespace) (Change, error) {
	return s.add(ctx, ns, objects.NamespaceSockets)
}

func (s Sockets) add(ctx context.Context, ns *netns.Namespace, flag uint32) (Change, error) {
	cookie, err := ns.Cookie()
	if err != nil {
		return Unchanged, err
	}
	lock, err := s.o.Lock(ctx)
	if err != nil {
		return Unchanged, err
	}
	defer lock.Unlock()
	changed, err := setNamespace(s.o, cookie, flag, 0)
	if err != nil || !changed {
		return Unchanged, err
	}
	return Added, nil
}

// DeleteHost reverses AddHost. If the namespace has an endpoint, its sockets are translated all the same. The namespace may
// be gone: List and netns.Namespace.Cookie return its cookie. The error is a *NotFoundError if it was not added.
func (s Sockets) DeleteHost(ctx context.Context, cookie uint64) error {
	return s.remove(ctx, cookie, objects.NamespaceHost, "host")
}

// DeletePod reverses AddPod, as DeleteHost does AddHost.
func (s Sockets) DeletePod(ctx context.Context, cookie uint64) error {
	return s.remove(ctx, cookie, objects.NamespaceSockets, "pod")
}

func (s Sockets) remove(ctx context.Context, cookie uint64, flag uint32, noun string) error {
	lock, err := s.o.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	changed, err := setNamespace(s.o, cookie, 0, flag)
	if err == nil && !changed {
		return &NotFoundError{What: fmt.Sprintf("%s with cookie %d", noun, cookie)}
	}
	return err
}

// Hosts returns the namespaces of AddHost, sorted by cookie. Their names take a look at all processes. It takes no lock.
func (s Sockets) Hosts() ([]Host, error) {
	cookies, err := s.flagged(objects.NamespaceHost)
	if err != nil || len(cookies) == 0 {
		return nil, err
	}
	hosts := make([]Host, len(cookies))
	for i, cookie := range cookies {
		hosts[i].Cookie = cookie
	}
	return hosts, eachNamespace(func(ns *netns.Namespace, cookie uint64) error {
		if i, ok := slices.BinarySearch(cookies, cookie); ok {
			hosts[i].Name = ns.Name()
		}
		return nil
	})
}

// Pods returns the cookies of the namespaces of AddPod, sorted. It takes no lock.
func (s Sockets) Pods() ([]uint64, error) { return s.flagged(objects.NamespaceSockets) }

// flagged returns the cookies of the namespaces that have a flag, sorted.
func (s Sockets) flagged(flag uint32) ([]uint64, error) {
	flags, err := namespaceFlags(s.o)
	if err != nil {
		return nil, err
	}
	var cookies []uint64
	for cookie, f := range flags {
		if f&flag != 0 {
			cookies = append(cookies, cookie)
		}
	}
	slices.Sort(cookies)
	return cookies, nil
}

// Sweep removes pods of AddPod whose network namespace has neither a name nor a process, except those whose cookie keep
// accepts.
func (s Sockets) Sweep(ctx context.Context, keep func(cookie uint64) bool) error {
	pods, err := s.Pods()
	if err != nil {
		return err
	}
	gone := make(map[uint64]bool)
	for _, cookie := range pods {
		if !keep(cookie) {
			gone[cookie] = true
		}
	}
	if len(gone) == 0 {
		return nil // which spares the look at all processes
	}
	if err := eachNamespace(func(_ *netns.Namespace, cookie uint64) error {
		delete(gone, cookie)
		return nil
	}); err != nil {
		return err
	}
	for cookie := range gone {
		if err := s.DeletePod(ctx, cookie); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// namespaceFlags returns the flags of all namespaces with socket translation, by cookie.
func namespaceFlags(o *objects.Objects) (map[uint64]uint32, error) {
	all := make(map[uint64]uint32)
	for row, err := range o.Namespaces.All() {
		if err != nil {
			return nil, err
		}
		all[row.Key] = row.Value
	}
	return all, nil
}

// setNamespace sets and clears flags of a namespace; its row goes with the last one. The caller has the lock.
func setNamespace(o *objects.Objects, cookie uint64, set, unset uint32) (changed bool, err error) {
	old, _, err := o.Namespaces.Get(cookie)
	if err != nil {
		return false, err
	}
	flags := old&^unset | set
	switch flags {
	case old:
		return false, nil
	case 0:
		return true, o.Namespaces.Delete(cookie)
	}
	return true, o.Namespaces.Put(cookie, flags)
}

// enableSockets enables translation in the namespace of an endpoint; cookie 0 is a pod without one. The caller has the lock.
func enableSockets(o *objects.Objects, cookie uint64) error {
	if cookie == 0 {
		return nil
	}
	_, err := setNamespace(o, cookie, objects.NamespacePod, 0)
	return err
}

// disableSockets reverses enableSockets, unless one of the endpoints that are left is in the namespace. The caller has the
// lock.
func disableSockets(o *objects.Objects, cookie uint64, left []Endpoint) error {
	if cookie == 0 || slices.ContainsFunc(left, func(e Endpoint) bool { return e.netns == cookie }) {
		return nil
	}
	_, err := setNamespace(o, cookie, 0, objects.NamespacePod)
	return err
}

// eachNamespace calls fn with the network namespaces that have a name or a process. Those that go meanwhile are left out.
func eachNamespace(fn func(ns *netns.Namespace, cookie uint64) error) (err error) {
	snapshot, err := linkinfo.Take()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	for _, ns := range snapshot.Namespaces() {
		cookie, err := ns.Cookie()
		if err != nil {
			return err
		}
		if err := fn(ns, cookie); err != nil {
			return err
		}
	}
	return nil
}
