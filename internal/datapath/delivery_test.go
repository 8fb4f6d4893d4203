// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"net/netip"
	"testing"

	"mustang/internal/datapath/objects"
)

// The receivers of TestDelivery.
const (
	receiverSelf    = "the sending pod"
	receiverSegment = "a pod on the segment"
	receiverPeer    = "a pod with a peer"
	receiverDevice  = "a pod with a device"
	receiverAway    = "another node"
)

// deliveries is the table of next_hop.h: the counter of the next hop, by attach point and receiver.
func deliveries() map[objects.AttachPoint]map[string]string {
	host := map[string]string{
		receiverSelf: "redirect_peer", receiverSegment: "passed", receiverPeer: "redirect_peer",
		receiverDevice: "redirect_device", receiverAway: "passed",
	}
	netkit := maps.Clone(host)
	netkit[receiverSelf], netkit[receiverPeer] = "redirect_device", "redirect_device"
	return map[objects.AttachPoint]map[string]string{
		objects.AttachHost: host, objects.AttachTun: host, objects.AttachNetkit: netkit,
		objects.AttachPod: {
			receiverSelf: "hairpin", receiverSegment: "l2_delivered", receiverPeer: "passed", receiverDevice: "passed",
			receiverAway: "passed",
		},
		objects.AttachUplink: { // a client outside is no pod; TestBackendOnAnotherNode has the way to another node
			receiverSegment: "l2_delivered", receiverPeer: "redirect_peer", receiverDevice: "redirect_device",
		},
	}
}

// TestDelivery sends a packet to a service from each attach point to each kind of receiver.
func TestDelivery(t *testing.T) {
	b := newBench(t)
	for at, row := range deliveries() {
		for receiver, counter := range row {
			for _, v6 := range []bool{false, true} {
				t.Run(string(at)+"/"+receiver+"/"+map[bool]string{false: "ipv4", true: "ipv6"}[v6], func(t *testing.T) {
					w := newWorld(b, v6, protoTCP)
					if at == objects.AttachTun {
						w.tunAddresses()
					}
					w.clear(t)
					h, p := w.deliver(t, at, receiver)
					before := counts(t, b.Datapath)
					action, _ := b.run(t, h, p.frame())
					want := once(h.Program, "new_connection", "forward", counter)
					if got := delta(t, b.Datapath, before); !maps.Equal(got, want) {
						t.Errorf("counted %v, want %v", got, want)
					}
					redirects := counter != "passed" && counter != "l2_delivered"
					if redirects != (action == actionRedirect) || !redirects && action != actionNext {
						t.Errorf("action %d beside %s", int32(action), counter)
					}
				})
			}
		}
	}
}

// deliver makes the endpoints of a client at an attach point and of a receiver, and a service that the receiver serves.
// It returns the client's program and packet.
func (w *world) deliver(t *testing.T, at objects.AttachPoint, receiver string) (objects.Hook, packet) {
	t.Helper()
	client, backend := pod{2, objects.AttachHost, "0c", ""}, pod{1, objects.AttachHost, "0a", ""}
	if at == objects.AttachPod || receiver == receiverSegment {
		client = pod{2, objects.AttachPod, "0c", "s"}
	}
	switch receiver {
	case receiverSelf:
		client.id, backend = 1, client
	case receiverSegment:
		backend = pod{1, objects.AttachPod, "0a", "s"}
		if at == objects.AttachUplink {
			backend.segment = "\x01" // the index of the device of test runs
		}
	case receiverDevice:
		backend.at = tapPod
	}
	backend.id = 1
	from, to := w.client, w.backend
	if at == objects.AttachUplink {
		from = w.outsider
	} else {
		w.endpoint(t, client, from.Addr())
	}
	if receiver == receiverAway {
		to = w.remote
	} else if receiver == receiverSelf {
		to = netip.AddrPortFrom(from.Addr(), 8080)
	} else {
		w.endpoint(t, backend, to.Addr())
	}
	w.serve(t, w.service, to)
	p := w.first(from, w.service)
	switch at {
	case objects.AttachUplink:
		return fromUplink, p.arriving("aa")
	case objects.AttachTun:
		return fromTun, p.without()
	}
	return objects.Hook{Point: at, Program: fromHost.Program}, p
}
