// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/qdisc"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// Put attaches the programs to a pod's device and stores the device's addresses, except link-local ones, as
// endpoints. The programs sit on the host's side of the link (veth) or, without one, on the pod's own device
// (macvlan). An existing endpoint of the device is updated; it keeps its owner and the parts that spec.Given does not
// name. An endpoint that has one of the addresses and whose device is gone is replaced. If a step fails, all is
// undone. Errors: a missing device or namespace matches os.ErrNotExist; *ConflictError if another live pod, the host,
// or a service has an address, or the pods here belong to another host; *objects.FullError.
func (e Endpoints) Put(ctx context.Context, spec EndpointSpec) (_ []Endpoint, _ Change, err error) {
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
	all, err := e.list()
	if err != nil {
		return nil, Unchanged, err
	}
	var id uint32
	var have []Endpoint
	if i := slices.IndexFunc(all, t.is); i >= 0 {
		id, t.Owner = all[i].ID, all[i].Owner
		have = slices.DeleteFunc(slices.Clone(all), func(o Endpoint) bool { return o.ID != id })
	}
	if len(have) > 0 && spec.Given != nil {
		err = e.keep(ctx, t, have, *spec.Given)
	}
	if err := errors.Join(err, t.requireAddress(spec)); err != nil {
		return nil, Unchanged, err
	}
	if err := e.replaceStale(ctx, all, t); err != nil {
		return nil, Unchanged, err
	}
	if len(have) == 0 || spec.Given != nil && spec.Given.Addresses {
		if err := e.refuseTaken(spec, t); err != nil {
			return nil, Unchanged, err
		}
	}
	if err := e.refuseNamed(t, all); err != nil {
		return nil, Unchanged, err
	}
	if len(have) > 0 {
		return e.store(ctx, t, id, have)
	}
	// A process that died while it deleted the device's last pod leaves its programs.
	if err := sweepRemains(ctx, e.o); err != nil {
		return nil, Unchanged, err
	}
	rows, _, err := e.store(ctx, t, 0, nil)
	if err != nil {
		if len(rows) > 0 {
			err = errors.Join(err, e.remove(context.WithoutCancel(ctx), rows[0].ID))
		}
		return nil, Unchanged, err
	}
	return rows, Added, nil
}

// keep restores what the endpoint has and the caller did not name: settings by root of the pod do not count.
func (e Endpoints) keep(ctx context.Context, t *podDevice, have []Endpoint, given Given) error {
	sender, known, err := e.o.Senders.Get(senderKey(have[0].Host, t.Netns, t.IfIndex))
	if err != nil {
		return err
	}
	if known {
		if !given.Allowed {
			t.Allowed = allowedBy(sender)
		}
		if !given.Guard {
			t.Unguarded = sender.Flags&objects.SenderUnguarded != 0
		}
		t.DHCP = sender.Flags&objects.SenderDHCP != 0
		if t.Netns != 0 {
			t.LinkLocal = rows.DecodeAddr(sender.LinkLocal)
		}
	}
	if !given.Addresses {
		var addresses []netip.Addr
		for _, row := range have {
			addresses = append(addresses, row.IP)
		}
		t.Addresses = apart(addresses, t.Allowed)
	}
	if t.fixedMAC {
		t.PodMAC = have[0].PodMAC
	}
	t.Flags &^= objects.EndpointPeer &^ have[0].flags // its rate may be limited
	if t.Pod == nil {
		return nil
	}
	return e.o.WithLock(ctx, func() error {
		pod, err := policiesOf(e.o).Known(have[0].ID, t.Addresses)
		t.Pod = given.merge(pod, *t.Pod)
		return err
	})
}

// replaceStale removes the endpoints whose device is gone, and that have an address of t or block its device.
func (e Endpoints) replaceStale(ctx context.Context, all []Endpoint, t *podDevice) error {
	var stale []uint32
	for _, other := range all {
		// If a device of the host that is gone had its index, the programs would deliver the endpoint's packets to it.
		displaced := other.Host && !t.Point.OnPod() && other.IfIndex == t.IfIndex
		if t.is(other) || !displaced && !slices.Contains(t.Addresses, other.IP) {
			continue
		}
		if e.alive(other.ID) {
			return &ConflictError{What: fmt.Sprintf("address %s belongs to endpoint %d, which is in use", other.IP, other.ID)}
		}
		stale = append(stale, other.ID)
	}
	if err := e.remove(ctx, stale...); err != nil {
		return fmt.Errorf("replace endpoint %d: %w", stale[0], err)
	}
	return nil
}

// refuseTaken returns a *ConflictError if the host or a service has an address of the pod. The pod would receive the
// host's packets, and would be unreachable at a service's address.
func (e Endpoints) refuseTaken(spec EndpointSpec, t *podDevice) error {
	own, err := rtnl.In(t.HostNS).FirstLocal(t.Addresses)
	if err != nil {
		return err
	}
	if own.IsValid() {
		return &ConflictError{What: fmt.Sprintf("interface %s: its address %s belongs to the host", spec, own)}
	}
	return e.refuseServices(t.Addresses, "interface "+spec.String())
}

func (e Endpoints) refuseServices(addresses []netip.Addr, of string) error {
	for _, addr := range addresses {
		_, taken, err := e.o.ServiceAddrs.Get(rows.EncodeAddr(addr))
		if err != nil {
			return err
		}
		if taken {
			return &ConflictError{What: fmt.Sprintf("%s: its address %s belongs to a service", of, addr)}
		}
	}
	return nil
}

// refuseNamed returns a *ConflictError if the command line has added another pod with this name that is still alive:
// policies could not distinguish them. Devices in one network namespace belong to one pod.
func (e Endpoints) refuseNamed(t *podDevice, all []Endpoint) error {
	if t.Pod == nil || t.Pod.Name == "" || t.Owner != service.CLI {
		return nil
	}
	ids, err := policiesOf(e.o).Named(t.Pod.Namespace, t.Pod.Name)
	if err != nil || len(ids) == 0 {
		return err
	}
	for _, o := range all {
		same := t.is(o) || o.netns != 0 && o.netns == t.Netns
		if slices.Contains(ids, o.ID) && !same && o.Owner == service.CLI && e.alive(o.ID) {
			return &ConflictError{What: fmt.Sprintf("pod %s/%s is endpoint %d (%s) already", t.Pod.Namespace, t.Pod.Name,
				o.ID, o.IP)}
		}
	}
	return nil
}

// store replaces the rows of an endpoint, and attaches its programs. Number 0 stands for a new endpoint. Rows come
// first: if the process dies in between, the next call finds the endpoint and attaches missing programs.
func (e Endpoints) store(ctx context.Context, t *podDevice, id uint32, have []Endpoint) (
	want []Endpoint, change Change, err error,
) {
	changed := false
	err = e.o.WithLock(ctx, func() error {
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
		// The guard drops all packets from a device without a row.
		guarded, err := putSender(e.o, t.senderRow(id, false))
		if err != nil {
			return err
		}
		labelled, err := e.writeAdmitted(want, t.Pod, func(want []Endpoint) error {
			// Rows that stay keep the programs' notes.
			fresh := slices.DeleteFunc(slices.Clone(want), func(w Endpoint) bool {
				return slices.ContainsFunc(have, func(e Endpoint) bool { return reflect.DeepEqual(e, w) })
			})
			changed = len(fresh) > 0 || len(have) != len(want)
			return e.write(fresh)
		})
		if err != nil {
			return err
		}
		changed = changed || guarded || labelled
		return errors.Join(e.deleteRows(have, want), enableSockets(e.o, t.Netns))
	})
	if err != nil {
		return want, Unchanged, err
	}
	attached, err := e.attach(t, id)
	if changed || attached {
		change = Updated
	}
	return want, change, err
}

// nextEndpoint allocates the ID of an endpoint or of a guarded pod, unless it has one, and a revision. Services
// planned before are planned again, since one may have an address of the pod. The caller has the lock of the rows.
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

// attach attaches the missing programs; on the pod's device all or none.
func (e Endpoints) attach(t *podDevice, id uint32) (changed bool, err error) {
	if err := t.attachOuter(e.o); err != nil {
		return false, err
	}
	missing := e.o.Missing(t.links(id), uint64(t.IfIndex))
	if len(missing) > 0 {
		if err := t.On.Do(func() error { return e.o.AttachAll(missing, t.IfIndex) }); err != nil {
			return false, err
		}
	}
	if isFilter(t.Point) { // which it had while it was no endpoint
		err = qdisc.DeleteIngress(t.On, t.IfIndex)
	}
	return len(missing) > 0, err
}

// writeAdmitted writes the rows of an endpoint with its policies' rule sets. It reports whether the endpoint's
// attributes for policies changed.
func (e Endpoints) writeAdmitted(rows []Endpoint, pod *policy.Pod, write func([]Endpoint) error) (bool, error) {
	addresses := make([]netip.Addr, len(rows))
	for i, row := range rows {
		addresses[i] = row.IP
	}
	return policiesOf(e.o).Admit(rows[0].ID, addresses, pod, func(sets map[netip.Addr]policy.Sets) error {
		for i := range rows {
			rows[i].sets = sets[netip.AddrFrom16(rows[i].IP.As16())]
		}
		return write(rows)
	})
}

func (e Endpoints) write(rows []Endpoint) error {
	for _, row := range rows {
		if err := e.o.Endpoints.Put(encodeEndpoint(row)); err != nil {
			return err
		}
	}
	return e.o.NodeState.Invalidate()
}

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
