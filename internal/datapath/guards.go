// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/qdisc"
	"mustang/internal/rtnl"
)

// Guards are the pods with only the source guard: they are not endpoints, and their packets are not translated.
//
// At a device of the host, which the pod cannot change, the program of such a pod is a tc filter. Attaching a program
// via tcx, or deleting a device with one, waits about 12 ms for an RCU grace period with the lock of all devices
// (docs/adr/0026). A filter is not pinned. The row of the device locates it, and is written first.
type Guards struct{ o *objects.Objects }

// Guards returns the handle of such pods.
func (d *Datapath) Guards() Guards { return Guards{d.objects} }

// Put guards a pod: packets from its device must have its MAC address, and one of its addresses or of the allowed
// ones. If it fails, all is undone. Errors: as of Endpoints.Put for a device; *ConflictError for an endpoint.
func (g Guards) Put(ctx context.Context, spec EndpointSpec) (change Change, err error) {
	t, err := g.find(spec)
	if err != nil {
		return Unchanged, err
	}
	defer t.Close()
	links, err := g.o.LockLinks(ctx)
	if err != nil {
		return Unchanged, err
	}
	defer links.Unlock()
	if err := requireHost(ctx, g.o, t.Host, "interface "+spec.String()); err != nil {
		return Unchanged, err
	}
	id, change, err := g.write(ctx, spec, t)
	if err != nil {
		return Unchanged, err
	}
	err = t.attachOuter(g.o)
	if err == nil && !g.attached(t, id) {
		err = g.attach(t, id)
	}
	if err != nil {
		gone := []senderRow{t.senderRow(id, true)}
		return Unchanged, errors.Join(err, g.end(context.WithoutCancel(ctx), t.HostNS, gone))
	}
	return change, nil
}

func (g Guards) find(spec EndpointSpec) (*podDevice, error) {
	t, err := findTarget(spec)
	if err != nil {
		return nil, err
	}
	if err = t.requireAddress(spec); err == nil && len(t.Addresses) > maxPrefixes {
		err = fmt.Errorf("interface %s has %d addresses; a pod that is not an endpoint has at most %d", spec,
			len(t.Addresses), maxPrefixes)
	}
	if err != nil {
		t.Close()
	}
	return t, err
}

// write stores the row of the device, before its program: the program lets nothing pass without.
func (g Guards) write(ctx context.Context, spec EndpointSpec, t *podDevice) (id uint32, change Change, err error) {
	err = g.o.WithLock(ctx, func() error {
		have, ok, err := g.o.Senders.Get(t.senderRow(0, true).Key)
		if err != nil {
			return err
		}
		alone := have.Flags&objects.SenderAlone != 0
		switch {
		case ok && !alone && Endpoints(g).alive(have.Endpoint):
			return &ConflictError{What: fmt.Sprintf("interface %s is endpoint %d", spec, have.Endpoint)}
		case ok && alone && g.attached(t, have.Endpoint):
			id, change = have.Endpoint, Updated
		default:
			change = Added
			if id, err = nextEndpoint(g.o, 0); err != nil {
				return err
			}
		}
		changed, err := putSender(g.o, t.senderRow(id, true))
		if err == nil && !changed {
			change = Unchanged
			return nil
		}
		return errors.Join(err, g.o.NodeState.Invalidate())
	})
	return id, change, err
}

// DeletePod ends the guards in the network namespace with the cookie that have one of the addresses. Their devices
// may be gone. Without such guards it returns nil. Guards of other pods stay.
func (g Guards) DeletePod(ctx context.Context, cookie uint64, addresses []netip.Addr) error {
	return g.remove(ctx, func(_ *netns.Namespace, row senderRow) bool {
		s := row.Value
		return s.Netns == cookie && slices.ContainsFunc(addresses, func(a netip.Addr) bool {
			for _, own := range s.Prefix[s.Prefixes-s.Addresses : s.Prefixes] {
				if rows.DecodeAddr(own.Addr) == a {
					return true
				}
			}
			return false
		})
	})
}

// Sweep ends the guards of gone devices, unless keep accepts their namespace's cookie, and remains of killed processes.
func (g Guards) Sweep(ctx context.Context, keep func(cookie uint64) bool) error {
	return g.remove(ctx, func(host *netns.Namespace, row senderRow) bool {
		filter := row.Key.Netns == 0 && host != nil && hasFilter(host, int(row.Key.Ifindex))
		return !keep(row.Value.Netns) && !filter && !anyAttached(g.o, g.o.GuardHooks(), row.Value.Endpoint)
	})
}

// DeleteAll ends the guards of all pods.
func (g Guards) DeleteAll(ctx context.Context) error {
	return g.remove(ctx, func(*netns.Namespace, senderRow) bool { return true })
}

func (g Guards) remove(ctx context.Context, match func(*netns.Namespace, senderRow) bool) error {
	return g.o.WithLinks(ctx, func() error {
		all, err := g.list()
		if err != nil {
			return err
		}
		return g.onHost(func(host *netns.Namespace) error {
			all = slices.DeleteFunc(all, func(row senderRow) bool { return !match(host, row) })
			return errors.Join(g.end(ctx, host, all), sweepRemains(ctx, g.o))
		})
	})
}

// list returns the rows of pods that are not endpoints.
func (g Guards) list() (all []senderRow, err error) {
	for row, err := range g.o.Senders.All() {
		if err != nil {
			return nil, err
		}
		if row.Value.Flags&objects.SenderAlone != 0 {
			all = append(all, row)
		}
	}
	return all, nil
}

// onHost calls fn with the host's network namespace; nil if it is gone.
func (g Guards) onHost(fn func(*netns.Namespace) error) error {
	state, err := g.o.NodeState.IDs()
	if err != nil {
		return err
	}
	return onHost(state.Host, fn)
}

// end deletes the rows of pods and then detaches their programs: until then these drop all packets. Filters go before
// their rows, which locate them. The host is nil if it is gone. The caller has the lock of the links.
func (g Guards) end(ctx context.Context, host *netns.Namespace, gone []senderRow) error {
	if len(gone) == 0 {
		return nil
	}
	for _, row := range gone {
		if row.Key.Netns == 0 && host != nil {
			if err := qdisc.DeleteIngress(host, int(row.Key.Ifindex)); err != nil {
				return err
			}
		}
	}
	err := g.o.WithLock(ctx, func() (err error) {
		for _, row := range gone {
			err = errors.Join(err, deleteSender(g.o, row.Key))
		}
		return errors.Join(err, g.o.NodeState.Invalidate())
	})
	for _, row := range gone {
		err = errors.Join(err, g.o.DetachAll(objects.Link{ID: uint64(row.Value.Endpoint)}.At(g.o.GuardHooks())))
	}
	return errors.Join(err, detachIdle(g.o))
}

// Check returns a *DeviationError unless a pod is guarded according to the spec. It takes no lock and only reads.
func (g Guards) Check(spec EndpointSpec) error {
	t, err := g.find(spec)
	if err != nil {
		return err
	}
	defer t.Close()
	have, _, err := g.o.Senders.Get(t.senderRow(0, true).Key)
	if err != nil {
		return err
	}
	found, err := t.guardDeviations(g.o, have.Endpoint, true)
	if err != nil {
		return err
	}
	if !g.attached(t, have.Endpoint) {
		found = append(found, "its program is not attached")
	}
	return deviation("source guard of "+spec.String(), found...)
}

// isFilter reports whether the program at a place is a tc filter, if the kernel has them.
func isFilter(p objects.AttachPoint) bool { return p == objects.AttachHost || p == objects.AttachTun }

func hasFilter(host *netns.Namespace, index int) bool {
	program, err := qdisc.Ingress(host, index)
	return program != 0 || err != nil
}

func (g Guards) link(t *podDevice, id uint32) objects.Link {
	return objects.Link{Hook: t.Point.Guard().Hooks()[0], ID: uint64(id)}
}

func (g Guards) attach(t *podDevice, id uint32) error {
	link := g.link(t, id)
	if isFilter(t.Point) {
		if err := g.setFilter(t.Point, t.On, t.IfIndex); !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return t.On.Do(func() error { return g.o.AttachAll([]objects.Link{link}, t.IfIndex) })
}

func (g Guards) attached(t *podDevice, id uint32) bool {
	missing := g.o.Missing([]objects.Link{g.link(t, id)}, uint64(t.IfIndex))
	return len(missing) == 0 || isFilter(t.Point) && hasFilter(t.On, t.IfIndex)
}

func (g Guards) setFilter(at objects.AttachPoint, host *netns.Namespace, index int) error {
	p, err := g.o.Program(at.Guard().Hooks()[0])
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	return qdisc.SetIngress(host, index, p.FD())
}

func replaceFilters(o *objects.Objects) error {
	g := Guards{o}
	return g.onHost(func(host *netns.Namespace) error {
		if host == nil {
			return nil
		}
		all, err := g.list()
		for _, row := range all {
			index := int(row.Key.Ifindex)
			if row.Key.Netns != 0 || !hasFilter(host, index) {
				continue
			}
			d, deviceErr := rtnl.In(host).DeviceByIndex(index)
			point := objects.AttachHost
			if len(d.MAC) == 0 {
				point = objects.AttachTun
			}
			if deviceErr == nil {
				deviceErr = g.setFilter(point, host, index)
			}
			if !errors.Is(deviceErr, fs.ErrNotExist) {
				err = errors.Join(err, deviceErr)
			}
		}
		return err
	})
}
