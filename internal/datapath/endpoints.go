// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"reflect"
	"slices"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// Endpoints are the pods of a datapath: their addresses, and the programs on their devices.
type Endpoints struct{ o *objects.Objects }

// Endpoint is one address of a pod.
type Endpoint struct {
	// ID is shared by all addresses of one device.
	ID    uint32
	IP    netip.Addr
	Owner service.Owner
	// Host tells whether the programs sit on the host's side of the pod's link, whose index IfIndex then is. Otherwise
	// they sit on the pod's own device, and IfIndex is its index in the pod's network namespace.
	Host    bool
	IfIndex int
	// PodMAC is the MAC address of the device in the pod; zero if it has none, like TUN.
	PodMAC net.HardwareAddr
	// NodeMAC is the node's MAC address on the pod's link: that of the host's side; for a macvlan or ipvlan that of the
	// host's own on the same parent, or else of the parent; for a segment that of its device. Zero if there is none.
	NodeMAC net.HardwareAddr

	// Kind is the kind of the device, such as "veth", Master that of what it is a port of, and Device its name. Layer3
	// is whether it is an ipvlan whose packets the host routes, and Ethernet whether it has a MAC address. Netns is the
	// pod's network namespace by its name or path. Guarded is whether the source guard is on. Describe fills them in.
	Kind, Master, Device, Netns string
	Layer3, Ethernet, Guarded   bool
	// Allowed is what the pod may use as source besides its addresses, and LinkLocal its link-local address, invalid if
	// it is not known. Describe fills them in, with Guarded.
	Allowed   []netip.Prefix
	LinkLocal netip.Addr
	// Sent is what the pod has sent by the device, and Received what it got.
	Sent, Received Traffic

	flags   uint32 // how packets enter the pod from the host's side
	segment uint32 // pods without a host side reach each other by MAC address if theirs are equal; 0 is none
	netns   uint64 // cookie of the pod's network namespace; 0 if it has none
	sets    policy.Sets
}

// Traffic is what has been carried in one direction: by a device since it was made, for a service since it was created.
type Traffic = objects.Traffic

// Get returns the endpoint's row of an address. The error is a *NotFoundError if there is none. It takes no lock.
func (e Endpoints) Get(_ context.Context, ip netip.Addr) (Endpoint, error) {
	value, ok, err := e.o.Endpoints.Get(rows.EncodeAddr(ip))
	if err == nil && !ok {
		err = endpointNotFound(ip)
	}
	if err != nil {
		return Endpoint{}, err
	}
	return decodeEndpoint(rows.EncodeAddr(ip), value), nil
}

// List returns all endpoints, sorted by ID and address. It takes no lock.
func (e Endpoints) List(context.Context) ([]Endpoint, error) {
	return e.list()
}

func (e Endpoints) list() ([]Endpoint, error) {
	var all []Endpoint
	for row, err := range e.o.Endpoints.All() {
		if err != nil {
			return nil, err
		}
		all = append(all, decodeEndpoint(row.Key, row.Value))
	}
	sortEndpoints(all)
	return all, nil
}

// Put attaches the programs to a pod's device and stores the device's addresses, except link-local ones, as endpoints.
// The programs sit on the host's side of the link if it has one, as a veth has, and otherwise on the pod's own device,
// as with a macvlan. An existing endpoint of the device is updated, and keeps its owner and what spec.Given does not
// name; one that has an address and whose device is gone is replaced. If a step fails, all is undone. Errors: a device
// or namespace that is missing matches os.ErrNotExist; *ConflictError if another pod that is alive, the host, or a
// service has an address, or the pods here are those of another host; *objects.FullError.
func (e Endpoints) Put(ctx context.Context, spec EndpointSpec) ([]Endpoint, Change, error) {
	return e.put(ctx, spec, false)
}

// put is Put. If own is set, the error is a *ConflictError for a device that is another owner's endpoint.
func (e Endpoints) put(ctx context.Context, spec EndpointSpec, own bool) ([]Endpoint, Change, error) {
	t, err := findTarget(spec)
	if err != nil {
		return nil, Unchanged, err
	}
	defer t.Close()
	// Endpoints change with this lock only.
	links, err := e.o.LockLinks(ctx)
	if err != nil {
		return nil, Unchanged, err
	}
	defer links.Unlock()
	if err := requireHost(ctx, e.o, t.Host, "interface "+spec.String()); err != nil {
		return nil, Unchanged, err
	}
	if err := errors.Join(e.keep(ctx, t, spec.Given), t.RequireAddress(spec)); err != nil {
		return nil, Unchanged, err
	}
	all, err := e.matching(func(e Endpoint) bool {
		return t.is(e) || t.displaces(e) || slices.Contains(t.Addresses, e.IP)
	})
	if err != nil {
		return nil, Unchanged, err
	}
	if all, err = e.replaceStale(ctx, all, t); err != nil {
		return nil, Unchanged, err
	}
	i := slices.IndexFunc(all, t.is)
	if i < 0 || spec.Given != nil && spec.Given.Addresses {
		if err := e.refuseTaken(spec, t); err != nil {
			return nil, Unchanged, err
		}
	}
	var id uint32
	if i >= 0 {
		if id, t.Owner = all[i].ID, all[i].Owner; own && t.Owner != spec.Owner {
			return nil, Unchanged, &ConflictError{What: fmt.Sprintf("interface %s: belongs to owner %s as endpoint %d", spec,
				t.Owner, id)}
		}
	}
	if err := e.refuseNamed(t); err != nil {
		return nil, Unchanged, err
	}
	if i >= 0 {
		return e.store(ctx, t, id, slices.DeleteFunc(all, func(e Endpoint) bool { return e.ID != id }))
	}
	// A process that died while it deleted the device's last pod leaves its programs.
	if err := sweepRemains(ctx, e.o); err != nil {
		return nil, Unchanged, err
	}
	rows, _, err := e.store(ctx, t, 0, nil)
	if err != nil {
		others, listErr := e.list()
		return nil, Unchanged, errors.Join(err, listErr, e.remove(context.WithoutCancel(ctx), append(others, rows...), rows))
	}
	return rows, Added, nil
}

// store writes the rows of an endpoint, instead of those that it has, and attaches its programs. Number 0 stands for a
// new one. Rows come first: if we die in between, the next call finds the endpoint and attaches what is missing.
func (e Endpoints) store(ctx context.Context, t target, id uint32, have []Endpoint) (want []Endpoint, change Change,
	err error) {
	changed := false
	if err := e.o.WithLock(ctx, func() (err error) {
		fresh := slices.DeleteFunc(slices.Clone(t.Addresses), func(a netip.Addr) bool {
			return slices.ContainsFunc(have, func(e Endpoint) bool { return e.IP == a })
		})
		// one may have been added since
		if err := e.refuseServices(fresh, fmt.Sprintf("endpoint at device %d", t.IfIndex)); err != nil {
			return err
		}
		if id == 0 || len(fresh) > 0 {
			if id, err = nextEndpoint(e.o, id); err != nil {
				return err
			}
		}
		want = t.endpoints(id)
		// The guard lets nothing pass by a device that it does not know.
		guarded, err := device.PutSender(e.o, t.SenderRow(id, false))
		if err != nil {
			return err
		}
		labelled, err := e.writeAdmitted(want, t.Pod, func(want []Endpoint) error {
			// Rows that stay keep what the programs have noted in them.
			fresh := slices.DeleteFunc(slices.Clone(want), func(w Endpoint) bool {
				return slices.ContainsFunc(have, func(e Endpoint) bool { return reflect.DeepEqual(e, w) })
			})
			changed = len(fresh) > 0 || len(have) != len(want)
			return e.write(fresh)
		})
		changed = changed || guarded || labelled
		if err != nil {
			return err
		}
		return errors.Join(e.deleteRows(have, want), enableSockets(e.o, t.Netns))
	}); err != nil {
		return want, Unchanged, err
	}
	attached, err := e.attach(t, id)
	if changed || attached {
		change = Updated
	}
	return want, change, err
}

// nextEndpoint gives out the ID of an endpoint or of a pod with the source guard alone, unless it has one, and a
// revision: services that were planned before are planned anew, as one may have an address of the pod. The caller has
// the lock of the rows.
func nextEndpoint(o *objects.Objects, id uint32) (uint32, error) {
	state, err := o.NodeState.IDs()
	if err != nil {
		return 0, err
	}
	if max(state.LastEndpoint, state.LastRevision) == math.MaxUint32 {
		return 0, errNumbersUsedUp
	}
	state.LastRevision++
	if id == 0 {
		state.LastEndpoint++
		id = state.LastEndpoint
	}
	return id, o.NodeState.PutIDs(state)
}

// attach attaches the programs that are missing; those on the pod's device all or none.
func (e Endpoints) attach(t target, id uint32) (changed bool, err error) {
	if err := t.AttachOuter(e.o); err != nil {
		return false, err
	}
	missing := e.o.Missing(t.links(id), uint64(t.IfIndex))
	if len(missing) > 0 {
		if err := t.On.Do(func() error { return e.o.AttachAll(missing, t.IfIndex) }); err != nil {
			return false, err
		}
	}
	return len(missing) > 0, t.Supersede()
}

// deleteRows deletes the rows of addresses that are no longer wanted.
func (e Endpoints) deleteRows(have, want []Endpoint) error {
	for _, old := range have {
		if slices.ContainsFunc(want, func(w Endpoint) bool { return w.IP == old.IP }) {
			continue
		}
		if err := e.o.Endpoints.Delete(rows.EncodeAddr(old.IP)); err != nil {
			return err
		}
	}
	return e.o.NodeState.Invalidate()
}

// replaceStale removes the endpoints that have an address of t and whose device is gone, and returns the others.
func (e Endpoints) replaceStale(ctx context.Context, all []Endpoint, t target) ([]Endpoint, error) {
	var stale []Endpoint
	for _, other := range all {
		if t.is(other) || !t.displaces(other) && !slices.Contains(t.Addresses, other.IP) {
			continue
		}
		if e.alive(other.ID) {
			return nil, &ConflictError{What: fmt.Sprintf("address %s belongs to endpoint %d, which is in use",
				other.IP, other.ID)}
		}
		stale = append(stale, other)
	}
	if len(stale) == 0 {
		return all, nil
	}
	if err := e.remove(ctx, all, stale); err != nil {
		return nil, fmt.Errorf("replace endpoint %d: %w", stale[0].ID, err)
	}
	return slices.DeleteFunc(all, func(e Endpoint) bool { return hasID(stale, e.ID) }), nil
}

func hasID(all []Endpoint, id uint32) bool {
	return slices.ContainsFunc(all, func(e Endpoint) bool { return e.ID == id })
}

// alive reports whether a device still has a program of the endpoint.
func (e Endpoints) alive(id uint32) bool {
	for _, h := range objects.EndpointHooks() {
		if on, err := e.o.Attached(objects.Link{Hook: h, ID: uint64(id)}); err == nil && on != 0 {
			return true
		}
	}
	return false
}

// matching returns the endpoints of which one address matches, and those that share a network namespace with one. MAC
// addresses are not set for match. The caller has the lock of the links.
func (e Endpoints) matching(match func(Endpoint) bool) ([]Endpoint, error) {
	var rows []objects.Row[objects.Addr, objects.Endpoint]
	ids, namespaces := make(map[uint32]bool), make(map[uint64]bool)
	for row, err := range e.o.Endpoints.All() {
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
		if match(decodeEndpointPlace(row.Key, row.Value)) {
			ids[row.Value.Id], namespaces[row.Value.Netns] = true, true
		}
	}
	delete(namespaces, 0)
	var found []Endpoint
	for _, row := range rows {
		if ids[row.Value.Id] || namespaces[row.Value.Netns] {
			found = append(found, decodeEndpoint(row.Key, row.Value))
		}
	}
	sortEndpoints(found)
	return found, nil
}

// write stores rows.
func (e Endpoints) write(rows []Endpoint) error {
	for _, row := range rows {
		key, value := encodeEndpoint(row)
		if err := e.o.Endpoints.Put(key, value); err != nil {
			return err
		}
	}
	return e.o.NodeState.Invalidate()
}

// Check returns a *DeviationError unless a device is an endpoint with all its addresses, and has its programs. It takes
// no lock and changes nothing.
func (e Endpoints) Check(ctx context.Context, spec EndpointSpec) error {
	t, err := findTarget(spec)
	if err != nil {
		return err
	}
	defer t.Close()
	if err := t.RequireAddress(spec); err != nil {
		return err
	}
	all, err := e.List(ctx)
	if err != nil {
		return err
	}
	elsewhere, err := isElsewhere(e.o, t.Host)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, t.is)
	if i < 0 || elsewhere {
		return deviation("endpoint of "+spec.String(), "not found")
	}
	id := all[i].ID
	t.Owner = all[i].Owner
	var found []string
	for _, want := range t.endpoints(id) {
		if !slices.ContainsFunc(all, func(have Endpoint) bool {
			have.sets = policy.Sets{}
			return reflect.DeepEqual(have, want)
		}) {
			found = append(found, fmt.Sprintf("address %s is missing or leads elsewhere", want.IP))
		}
	}
	deviations, err := t.GuardDeviations(e.o, id, false)
	if err != nil {
		return err
	}
	found = append(found, deviations...)
	for _, k := range e.o.Missing(t.links(id), uint64(t.IfIndex)) {
		found = append(found, fmt.Sprintf("program %s is not attached", k.Hook.Program))
	}
	return deviation("endpoint of "+spec.String(), found...)
}

func sortEndpoints(all []Endpoint) {
	slices.SortFunc(all, func(a, b Endpoint) int { return cmp.Or(cmp.Compare(a.ID, b.ID), a.IP.Compare(b.IP)) })
}
