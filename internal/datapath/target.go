// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
)

// EndpointSpec names the device of a pod.
type EndpointSpec = device.Spec

// target is a pod's device as the endpoint that it is, or would be.
type target struct{ *device.Device }

func findTarget(spec EndpointSpec) (target, error) {
	d, err := spec.Find()
	return target{d}, err
}

// keep has the device keep what its endpoint has and nobody gave.
func (e Endpoints) keep(ctx context.Context, t target, given *device.Given) error {
	if given == nil {
		return nil
	}
	return e.o.WithLock(ctx, func() error {
		id, err := t.Keep(e.o, *given)
		if err != nil || id == 0 || t.Pod == nil {
			return err
		}
		have, err := policiesOf(e.o).Known(id, t.Addresses)
		t.Pod = given.Merge(have, *t.Pod)
		return err
	})
}

// is reports whether an endpoint is on this device. The kernel reuses no cookie of a namespace.
func (t target) is(e Endpoint) bool {
	return e.Host == (!t.Point.OnPod()) && e.IfIndex == t.IfIndex && e.netns == t.Netns
}

// displaces reports whether an endpoint was on a device of the host that is gone, and whose index this one has now: the
// programs would deliver the endpoint's packets to it.
func (t target) displaces(e Endpoint) bool {
	return e.Host && !t.Point.OnPod() && e.IfIndex == t.IfIndex && !t.is(e)
}

// links returns the links that the endpoint of the device has.
func (t target) links(id uint32) []objects.Link {
	var links []objects.Link
	for _, h := range t.Point.Hooks() {
		links = append(links, objects.Link{Hook: h, ID: uint64(id)})
	}
	return links
}

// endpoints returns the rows that the device should have.
func (t target) endpoints(id uint32) []Endpoint {
	rows := make([]Endpoint, 0, len(t.Addresses))
	for _, ip := range t.Addresses {
		rows = append(rows, Endpoint{
			ID: id, IP: ip, Host: !t.Point.OnPod(), IfIndex: t.IfIndex, PodMAC: t.PodMAC, NodeMAC: t.NodeMAC,
			Owner: t.Owner, flags: t.Flags, segment: uint32(t.Segment), netns: t.Netns,
		})
	}
	sortEndpoints(rows)
	return rows
}
