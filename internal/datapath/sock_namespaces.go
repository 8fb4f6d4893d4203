// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"mustang/internal/nl"
)

// Host is a network namespace beside the endpoints' own whose sockets are translated.
type Host struct {
	// Cookie is what programs know the namespace by; it is not used again.
	Cookie uint64
	// Name is the namespace's, or the path of a process's; empty if it has neither, or is gone.
	Name string
}

const (
	namespaceHost    = uint32(sockNamespaceFlagNAMESPACE_HOST)
	namespacePod     = uint32(sockNamespaceFlagNAMESPACE_POD)
	namespaceSockets = uint32(sockNamespaceFlagNAMESPACE_SOCKETS)
)

// AddHost has the sockets of a host's network namespace translated, of processes in the control groups of AttachSocket.
// Services with a loopback frontend count there, and only there. Errors: *FullError.
func (d *Datapath) AddHost(ns *nl.Namespace) (Change, error) {
	return d.addNamespace(ns, namespaceHost)
}

// AddSocketPod has the sockets of a pod translated that is no endpoint, of processes in the control groups of AttachSocket:
// its packets pass no program. Services with a loopback frontend don't count there: that address is the pod's own.
// Namespaces of endpoints need no such call. Errors: *FullError.
func (d *Datapath) AddSocketPod(ns *nl.Namespace) (Change, error) {
	return d.addNamespace(ns, namespaceSockets)
}

func (d *Datapath) addNamespace(ns *nl.Namespace, flag uint32) (Change, error) {
	cookie, err := ns.Cookie()
	if err != nil {
		return Unchanged, err
	}
	unlock, err := lock(d.layout.root)
	if err != nil {
		return Unchanged, err
	}
	defer unlock()
	changed, err := d.flagNamespace(cookie, flag, 0)
	if err != nil || !changed {
		return Unchanged, err
	}
	return Added, nil
}

// DeleteHost ends what AddHost began. If an endpoint is in the namespace, its sockets are translated all the same. The
// error is a *NotFoundError if the namespace was not added.
func (d *Datapath) DeleteHost(ns *nl.Namespace) error {
	cookie, err := ns.Cookie()
	if err != nil {
		return err
	}
	unlock, err := lock(d.layout.root)
	if err != nil {
		return err
	}
	defer unlock()
	changed, err := d.flagNamespace(cookie, 0, namespaceHost)
	if err == nil && !changed {
		return &NotFoundError{What: fmt.Sprintf("host %q", ns.Name())}
	}
	return err
}

// DeleteHostCookie is DeleteHost for a namespace that is gone: the cookie is the one that Hosts returned.
func (d *Datapath) DeleteHostCookie(cookie uint64) error {
	return d.deleteCookie(cookie, namespaceHost, "host")
}

// DeleteSocketPod ends what AddSocketPod began. The cookie is the namespace's (nl.Namespace.Cookie), which may be gone.
// The error is a *NotFoundError if it was not added.
func (d *Datapath) DeleteSocketPod(cookie uint64) error {
	return d.deleteCookie(cookie, namespaceSockets, "pod")
}

func (d *Datapath) deleteCookie(cookie uint64, flag uint32, what string) error {
	unlock, err := lock(d.layout.root)
	if err != nil {
		return err
	}
	defer unlock()
	changed, err := d.flagNamespace(cookie, 0, flag)
	if err == nil && !changed {
		return &NotFoundError{What: fmt.Sprintf("%s with cookie %d", what, cookie)}
	}
	return err
}

// Hosts returns the namespaces that were added with AddHost, sorted by cookie. To find their names takes a look at each
// process.
func (d *Datapath) Hosts() ([]Host, error) {
	hosts, err := d.flagged(namespaceHost)
	if err != nil || len(hosts) == 0 {
		return nil, err
	}
	return hosts, eachNamespace(func(ns *nl.Namespace, cookie uint64) error {
		if i, ok := slices.BinarySearchFunc(hosts, cookie, func(h Host, c uint64) int { return cmp.Compare(h.Cookie, c) }); ok {
			hosts[i].Name = ns.Name()
		}
		return nil
	})
}

// SocketPods returns the cookies of the namespaces that were added with AddSocketPod, sorted.
func (d *Datapath) SocketPods() ([]uint64, error) {
	pods, err := d.flagged(namespaceSockets)
	if err != nil {
		return nil, err
	}
	var cookies []uint64
	for _, p := range pods {
		cookies = append(cookies, p.Cookie)
	}
	return cookies, nil
}

// flagged returns the namespaces that have a flag, without their names, sorted.
func (d *Datapath) flagged(flag uint32) ([]Host, error) {
	unlock, err := lock(d.layout.root)
	if err != nil {
		return nil, err
	}
	defer unlock()
	flags, err := d.admitted()
	if err != nil {
		return nil, err
	}
	var hosts []Host
	for cookie, f := range flags {
		if f&flag != 0 {
			hosts = append(hosts, Host{Cookie: cookie})
		}
	}
	slices.SortFunc(hosts, func(a, b Host) int { return cmp.Compare(a.Cookie, b.Cookie) })
	return hosts, nil
}

// admitted returns the flags of all namespaces whose sockets are translated. The caller has the lock.
func (d *Datapath) admitted() (map[uint64]uint32, error) {
	all := make(map[uint64]uint32)
	var cookie uint64
	var flags uint32
	entries := d.namespaces.Iterate()
	for entries.Next(&cookie, &flags) {
		all[cookie] = flags
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read namespaces: %w", err)
	}
	return all, nil
}

// flagNamespace sets and unsets flags of a namespace, whose row goes with the last one. The caller has the lock.
func (d *Datapath) flagNamespace(cookie uint64, set, unset uint32) (changed bool, err error) {
	var old uint32
	err = d.namespaces.Lookup(cookie, &old)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, fmt.Errorf("read namespace: %w", err)
	}
	flags := old&^unset | set
	switch flags {
	case old:
		return false, nil
	case 0:
		return true, remove(d.namespaces, sockMapNamespaces, cookie)
	}
	return true, put(d.namespaces, sockMapNamespaces, cookie, flags)
}

// admit has the sockets in the namespace of an endpoint translated. A pod that is no namespace has cookie 0. The caller has
// the lock.
func (d *Datapath) admit(cookie uint64) error {
	if cookie == 0 {
		return nil
	}
	_, err := d.flagNamespace(cookie, namespacePod, 0)
	return err
}

// dismiss ends what admit began, unless one of the endpoints that are left is in the namespace still. The caller has the
// lock.
func (d *Datapath) dismiss(cookie uint64, left []Endpoint) error {
	if cookie == 0 || slices.ContainsFunc(left, func(e Endpoint) bool { return e.netns == cookie }) {
		return nil
	}
	_, err := d.flagNamespace(cookie, 0, namespacePod)
	return err
}
