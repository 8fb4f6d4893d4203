// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
)

// Guards are the pods that have the source guard alone: they are no endpoints, and their packets are not translated.
type Guards struct{ o *objects.Objects }

// Guards returns the handle of such pods.
func (d *Datapath) Guards() Guards { return Guards{d.objects} }

// maxGuarded is the number of addresses of a pod that is no endpoint.
const maxGuarded = 16

// Put guards a pod: what leaves its device has one of its addresses, or of those that the spec allows, and its MAC
// address. If it fails, all is undone. Errors: those of Endpoints.Put for a device; *ConflictError for an endpoint,
// which is guarded anyway.
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
	err = t.AttachOuter(g.o)
	if err == nil && !t.IsAlone(g.o, id) {
		err = t.AttachAlone(g.o, id)
	}
	if err != nil {
		gone := []device.SenderRow{t.SenderRow(id, true)}
		return Unchanged, errors.Join(err, device.RemoveAlone(context.WithoutCancel(ctx), g.o, t.HostNS, gone))
	}
	return change, nil
}

func (g Guards) find(spec EndpointSpec) (target, error) {
	t, err := findTarget(spec)
	if err != nil {
		return t, err
	}
	if err = t.RequireAddress(spec); err == nil && len(t.Addresses) > maxGuarded {
		err = fmt.Errorf("interface %s has %d addresses; a pod that is not an endpoint has at most %d", spec,
			len(t.Addresses), maxGuarded)
	}
	if err != nil {
		t.Close()
	}
	return t, err
}

// write stores the row of the device, before its program: the program lets nothing pass without.
func (g Guards) write(ctx context.Context, spec EndpointSpec, t target) (id uint32, change Change, err error) {
	err = g.o.WithLock(ctx, func() error {
		have, ok, err := g.o.Senders.Get(t.SenderRow(0, true).Key)
		if err != nil {
			return err
		}
		switch {
		case ok && have.Flags&objects.SenderAlone == 0 && Endpoints(g).alive(have.Endpoint):
			return &ConflictError{What: fmt.Sprintf("interface %s is endpoint %d", spec, have.Endpoint)}
		case ok && have.Flags&objects.SenderAlone != 0 && t.IsAlone(g.o, have.Endpoint):
			id, change = have.Endpoint, Updated
		default:
			change = Added
			if id, err = nextEndpoint(g.o, 0); err != nil {
				return err
			}
		}
		changed, err := device.PutSender(g.o, t.SenderRow(id, true))
		if err == nil && !changed {
			change = Unchanged
			return nil
		}
		return errors.Join(err, g.o.NodeState.Invalidate())
	})
	return id, change, err
}

// DeletePod ends the guards in the network namespace with the cookie that have one of the addresses. Their devices may
// be gone, and it is no error if there is none. Those of other pods stay.
func (g Guards) DeletePod(ctx context.Context, cookie uint64, addresses []netip.Addr) error {
	return g.remove(ctx, func(_ *netns.Namespace, row device.SenderRow) bool {
		s := row.Value
		for _, own := range s.Prefix[s.Prefixes-s.Addresses : s.Prefixes] {
			if s.Netns == cookie && slices.Contains(addresses, rows.DecodeAddr(own.Addr)) {
				return true
			}
		}
		return false
	})
}

// Sweep ends the guards of devices that are gone, except in network namespaces whose cookie keep accepts, and what
// killed processes left.
func (g Guards) Sweep(ctx context.Context, keep func(cookie uint64) bool) error {
	return g.remove(ctx, func(host *netns.Namespace, row device.SenderRow) bool {
		return !keep(row.Value.Netns) && !device.IsAlive(g.o, host, row)
	})
}

// DeleteAll ends the guards of all pods.
func (g Guards) DeleteAll(ctx context.Context) error {
	return g.remove(ctx, func(*netns.Namespace, device.SenderRow) bool { return true })
}

// replaceFilters replaces the guards of another build that are no links.
func replaceFilters(o *objects.Objects) error {
	state, err := o.NodeState.IDs()
	if err != nil {
		return err
	}
	return onHost(state.Host, func(host *netns.Namespace) error {
		if host == nil {
			return nil
		}
		return device.ReplaceFilters(o, host)
	})
}

// remove ends the guards that match, and what killed processes left.
func (g Guards) remove(ctx context.Context, match func(*netns.Namespace, device.SenderRow) bool) error {
	links, err := g.o.LockLinks(ctx)
	if err != nil {
		return err
	}
	defer links.Unlock()
	all, err := device.Alone(g.o)
	state, stateErr := g.o.NodeState.IDs()
	if err := errors.Join(err, stateErr); err != nil {
		return err
	}
	return onHost(state.Host, func(host *netns.Namespace) error {
		all = slices.DeleteFunc(all, func(row device.SenderRow) bool { return !match(host, row) })
		return errors.Join(device.RemoveAlone(ctx, g.o, host, all), sweepRemains(ctx, g.o))
	})
}

// Check returns a *DeviationError unless a pod is guarded as the spec says. It takes no lock and changes nothing.
func (g Guards) Check(spec EndpointSpec) error {
	t, err := g.find(spec)
	if err != nil {
		return err
	}
	defer t.Close()
	have, _, err := g.o.Senders.Get(t.SenderRow(0, true).Key)
	if err != nil {
		return err
	}
	found, err := t.GuardDeviations(g.o, have.Endpoint, true)
	if err != nil {
		return err
	}
	if !t.IsAlone(g.o, have.Endpoint) {
		found = append(found, "its program is not attached")
	}
	return deviation("source guard of "+spec.String(), found...)
}
